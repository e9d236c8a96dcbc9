/**
 * Dispatchers and the model servers that they share, on one virtual clock: real HTTP, hours in a second. A dispatcher
 * is the code behind the port of `upstream.ts`. A test sends lines through it like a batch.
 */
import { once } from "node:events";
import type { BatchId } from "../../src/batch/batch.ts";
import type { Outcome } from "../../src/batch/outcome.ts";
import { sleep } from "../../src/clock.ts";
import type { UpstreamRequest } from "../../src/upstream/request.ts";
import type { Route, Upstreams } from "../../src/upstream/upstream.ts";
import { openUpstreams } from "../../src/upstream/upstreams.ts";
import { Events } from "./events.ts";
import { type ModelServer, type ModelServerOptions, startModelServer } from "./model-server.ts";
import { seededRandom } from "./seeded-random.ts";
import { unobserved } from "./unobserved.ts";
import { VirtualClock } from "./virtual-clock.ts";
import { configWith } from "./yaml-config.ts";

/** An upstream as the configuration file has it. */
type UpstreamEntry = Readonly<Record<string, unknown>> & { readonly name: string };

export class World implements AsyncDisposable {
  readonly clock = new VirtualClock();
  readonly #servers: ModelServer[] = [];
  readonly #dispatchers: Dispatcher[] = [];

  async server(options: ModelServerOptions = {}): Promise<ModelServer> {
    const server = await startModelServer({ clock: this.clock, ...options });
    this.#servers.push(server);
    return server;
  }

  dispatcher(...upstreams: readonly UpstreamEntry[]): Dispatcher {
    const dispatcher = new Dispatcher(upstreams, this.clock, this.#dispatchers.length + 1);
    this.#dispatchers.push(dispatcher);
    return dispatcher;
  }

  /** Lets time pass until the work is done. All is quiet when each request sent has reached its server. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const sum = (counts: readonly number[]) => counts.reduce((total, count) => total + count, 0);
    const isQuiet = () =>
      sum(this.#dispatchers.map((dispatcher) => dispatcher.inFlight)) ===
      sum(this.#servers.map((server) => server.inFlight));
    return this.clock.run(work(), isQuiet);
  }

  sleep(ms: number): Promise<void> {
    return sleep(this.clock, ms, NEVER);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#dispatchers.map((dispatcher) => dispatcher.close()));
    for (const server of this.#servers) await server[Symbol.asyncDispose]();
  }
}

/** The most tokens of a request. The answers of the model servers respect it. */
export const MAX_TOKENS = 128;
const NEVER = new AbortController().signal;
/** What sends lines together is one batch. */
const BATCH = { batchId: "batch" as BatchId, project: "default", priority: 0, deadlineAtMs: 0 };
/** It is longer than any test lasts. */
const WINDOW_MS = 30 * 86_400_000;

export interface SendOptions {
  readonly model?: string;
  /** Ends the admission of lines when it aborts. */
  readonly stop?: AbortSignal;
  /** Returns the prompt of a line. */
  readonly prompt?: () => string;
}

export class Dispatcher {
  readonly events = new Events();
  readonly upstreams: Upstreams;
  readonly #clock: VirtualClock;
  readonly #number: number;
  #lineCount = 0;

  constructor(entries: readonly UpstreamEntry[], clock: VirtualClock, number: number) {
    this.#clock = clock;
    this.#number = number;
    this.upstreams = openUpstreams({
      upstreams: configWith({ upstreams: entries }).upstreams,
      maxAnswerBytes: () => 1_000_000,
      clock,
      log: this.events.log,
      ...unobserved(),
      random: seededRandom(number),
    });
  }

  get inFlight(): number {
    return this.upstreams
      .listTargets()
      .reduce((sum, { inFlight }) => sum + inFlight.batch + inFlight.interactive, 0);
  }

  /** The outcomes of so many new lines, sent one after the other as slots are free for them. */
  async sendLines(count: number, options: SendOptions = {}): Promise<Outcome[]> {
    const { model = "test-model", stop = NEVER, prompt } = options;
    const route = this.routeOf(model);
    const flow = route.flows.join({ ...BATCH, createdAtMs: this.#lineCount });
    const sending: Promise<Outcome>[] = [];
    for (let i = 0; i < count && !stop.aborted; i++) {
      const request = this.#requestOf(model, `${this.#number}/${++this.#lineCount}`, prompt?.());
      const slot = await route.acquire(request, { flow, rank: 0, stop });
      if (slot === null && stop.aborted) break;
      sending.push(route.send(request, { stop, abort: NEVER }, slot));
    }
    route.flows.remove(flow);
    return Promise.all(sending);
  }

  routeOf(model = "test-model"): Route {
    const route = this.upstreams.findRoute(model);
    if (route === null) throw new Error(`nothing serves ${model}`);
    return route;
  }

  /** Sends `count` lines, each after the answer to the one before it. */
  async sendInTurn(count: number): Promise<Outcome[]> {
    const outcomes: Outcome[] = [];
    for (let i = 0; i < count; i++) outcomes.push(...(await this.sendLines(1)));
    return outcomes;
  }

  /** Resolves to the status of a single request, which goes ahead of all lines. */
  async ask(user: string, model = "test-model"): Promise<number | string> {
    const result = await this.routeOf(model).proxy(this.#requestOf(model, user), NEVER);
    if (result.kind !== "proxied") return result.kind;
    result.body.resume();
    await once(result.body, "close");
    return result.status;
  }

  close(): Promise<void> {
    return this.upstreams.close();
  }

  #requestOf(model: string, user: string, content = "Hello"): UpstreamRequest {
    const messages = [{ role: "user", content }];
    const body = Buffer.from(JSON.stringify({ model, user, messages, max_tokens: MAX_TOKENS }));
    return {
      project: "default",
      endpoint: "/v1/chat/completions",
      model,
      isModelInBody: true,
      body,
      inputTokens: Math.ceil(body.length / 4),
      answerTokens: MAX_TOKENS,
      deadlineAtMs: this.#clock.nowMs() + WINDOW_MS,
      traceparent: null,
    };
  }
}

/** Returns the configuration of an upstream that serves any model. */
export const upstreamAt = (
  server: ModelServer,
  more: Readonly<Record<string, unknown>> = {},
): UpstreamEntry => ({ name: "only", base_url: server.url, models: ["*"], ...more });

/** Counts the outcomes by kind, and answers by their status. */
export function outcomeCounts(outcomes: readonly Outcome[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const outcome of outcomes) {
    const name = "status" in outcome ? String(outcome.status) : outcome.kind;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}
