/**
 * The model server of a run. It measures the load in the way that is hardest on batchd: a request whose client has
 * been killed stays in flight for as long as its answer would have taken, because a real model may go on with it.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { Given } from "../support/given.ts";
import { type SeenRequest, startUpstream, type TestUpstream } from "../support/upstream.ts";
import { contentFor, isRefused, type Model, usageFor } from "./lines.ts";
import type { Sizes } from "./sizes.ts";

const MINUTE_MS = 60_000;
/** A line may fail five times, so none runs out of attempts. */
const FAULTY_PART = 0.02;

export class ModelServer implements AsyncDisposable {
  /** The requests of each line. */
  readonly requestCounts = new Map<string, number>();
  /** The answers that were spoilt. */
  faultCount = 0;
  maxInFlight = 0;
  readonly #random: () => number;
  readonly #answerMs: number;
  readonly #arrivalsMs: number[] = [];
  #inFlight = 0;
  #upstream: TestUpstream | null = null;

  /** `random` draws the answers that are spoilt. */
  static async start(sizes: Sizes, random: () => number): Promise<ModelServer> {
    const server = new ModelServer(sizes, random);
    const answers = (asked: SeenRequest) => server.#answer(asked);
    server.#upstream = await startUpstream({ modelNames: [], answers });
    server.#upstream.forget();
    return server;
  }

  private constructor({ answerMs }: Sizes, random: () => number) {
    this.#answerMs = answerMs;
    this.#random = random;
  }

  get url(): string {
    return this.#upstream?.url ?? "";
  }

  get requestCount(): number {
    return this.requestCounts.values().reduce((sum, count) => sum + count, 0);
  }

  /** The most requests for the model with a rate within any sixty seconds. */
  get maxPerMinute(): number {
    let most = 0;
    let from = 0;
    for (const [i, atMs] of this.#arrivalsMs.entries()) {
      while ((this.#arrivalsMs[from] ?? atMs) <= atMs - MINUTE_MS) from++;
      most = Math.max(most, i + 1 - from);
    }
    return most;
  }

  async #answer({ model, user }: SeenRequest): Promise<Given> {
    this.requestCounts.set(user, (this.requestCounts.get(user) ?? 0) + 1);
    const isCounted = (model as Model) === "in-flight";
    if (isCounted) this.maxInFlight = Math.max(this.maxInFlight, ++this.#inFlight);
    else this.#arrivalsMs.push(performance.now());
    await delay(this.#answerMs);
    if (isCounted) this.#inFlight--;
    if (isRefused(user))
      return { status: 400, body: { error: { message: "refused", code: "no" } } };
    const message = { role: "assistant", content: contentFor(user) };
    const choices = [{ index: 0, message, finish_reason: "stop" }];
    const body = { id: user, object: "chat.completion", model, choices, usage: usageFor(user) };
    return this.#random() < FAULTY_PART ? this.#faulty({ body }) : { body };
  }

  /** Returns what a server under load, or a proxy before it, gives in the place of an answer. */
  #faulty(answer: Given): Given {
    this.faultCount++;
    const busy = { "retry-after-ms": "200" };
    const faults: readonly Given[] = [
      { ...answer, breaks: true },
      { status: 500, body: { error: { message: "out of memory" } } },
      { status: 429, headers: busy, body: { error: { message: "slow down" } } },
      { status: 503, headers: busy, body: "<html>busy</html>" },
      { body: "<html>please wait</html>" },
      { body: "" },
    ];
    return faults[Math.floor(faults.length * this.#random())] ?? answer;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#upstream?.close();
  }
}
