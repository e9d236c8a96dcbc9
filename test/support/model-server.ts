/**
 * A model server under load, for tests of dispatch and for the bench. It has a capacity, a queue, limits per minute and
 * outages, over real HTTP and on any clock. `upstream.ts` decides single answers and has neither a capacity nor a
 * clock, so the two are separate. They share only the reading of requests and the writing of answers.
 *
 * The server records the measures of a dispatcher: each arrival with its fate, the busy time and the number of requests
 * present. The `user` field of the body identifies a line, or else the prompt.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { type Clock, systemClock } from "../../src/clock.ts";
import { answerTo, errorEnvelope } from "./answers.ts";
import { closeServer, readBody, readPrompt, sendJson } from "./model-http.ts";
import { MINUTE_MS, RateLimiter, type RateLimits } from "./rate-limits.ts";
import { seededRandom } from "./seeded-random.ts";
import { Station, type StationTotals } from "./station.ts";

export interface ModelServerOptions extends RateLimits {
  /** The clock; the real one when it is left out. */
  readonly clock?: Clock;
  readonly seed?: number;
  /** The requests that are served at a time; unlimited when it is left out. */
  readonly capacity?: number;
  /** The longest queue, beyond which requests are refused; unlimited when it is left out. */
  readonly queueLimit?: number;
  readonly overloadStatus?: 429 | 498 | 503 | 529;
  /** The pause that a refusal asks for; none when it is left out. */
  readonly overloadPauseMs?: number;
  /** The initial service time of one request. */
  readonly serviceMs?: number;
  /** The share by which the service time varies, up and down. */
  readonly jitter?: number;
  /** The additional service time for each token of the answer. */
  readonly perTokenMs?: number;
  /** The least and most tokens of an answer. */
  readonly outputTokens?: readonly [number, number];
  /** The header with which a refusal names the pause. */
  readonly retryHint?: "seconds" | "milliseconds" | "none";
}

/** The look of an outage from outside: a closed port, reset connections, or the status of a proxy. */
export type Outage = "refuse" | "reset" | 502 | 503 | 521;

export type Fate =
  | "under_way"
  | "served"
  /** The queue was full. */
  | "overloaded"
  | "rate_limited"
  /** The request came during a pause. */
  | "paused"
  /** The request came, or was present, in an outage. */
  | "down"
  /** The client disconnected. */
  | "gone";

export interface Arrival {
  readonly line: string;
  readonly model: string;
  readonly atMs: number;
  fate: Fate;
}

export interface ModelServerStats extends StationTotals {
  readonly arrived: number;
  readonly fates: Readonly<Partial<Record<Fate, number>>>;
  readonly maxQueue: number;
  /** The most requests present at once, waiting or served. */
  readonly maxPresent: number;
  /** The minutes from the start, including empty ones. */
  readonly minutes: readonly Minute[];
  /** The totals at the first arrival; null before. */
  readonly atFirstArrival: StationTotals | null;
  /** The totals at the last answer; null before. */
  readonly atLastAnswer: StationTotals | null;
}

export interface Minute {
  readonly arrived: number;
  readonly rateLimited: number;
}

interface Milestone {
  readonly served: number;
  resolve(totals: StationTotals): void;
}

/** The first port to try. The system gives out only higher ones, so no other process takes it during an outage. */
const FIRST_PORT = 12_000;
const PORT_COUNT = 20_000;
const BACKLOG = 4_096;
/** One for all visitors, because every error keeps a stack. */
const GONE = new Error("the visitor has gone");

export async function startModelServer(options: ModelServerOptions = {}): Promise<ModelServer> {
  const server = new ModelServer(options);
  await server.open();
  return server;
}

export class ModelServer implements AsyncDisposable {
  readonly arrivals: Arrival[] = [];
  /** The requests without a complete answer. */
  inFlight = 0;
  readonly #options: ModelServerOptions;
  readonly #clock: Clock;
  readonly #startedAtMs: number;
  readonly #random: () => number;
  readonly #station: Station;
  readonly #rateLimiter: RateLimiter;
  readonly #server: Server;
  readonly #visitors = new Set<AbortController>();
  readonly #minutes: { arrived: number; rateLimited: number }[] = [];
  #milestones: Milestone[] = [];
  #atFirstArrival: StationTotals | null = null;
  #atLastAnswer: StationTotals | null = null;
  #port = 0;
  #service: { fromMs: number; toMs: number; atMs: number; overMs: number };
  #pausedUntilMs = -Infinity;
  #outage: Outage | null = null;

  constructor(options: ModelServerOptions) {
    const { clock = systemClock, capacity = Infinity, queueLimit = Infinity } = options;
    const nowMs = clock.nowMs();
    this.#options = options;
    this.#clock = clock;
    this.#startedAtMs = nowMs;
    this.#random = seededRandom(options.seed ?? 1);
    this.#station = new Station({ clock, capacity, queueLimit });
    this.#rateLimiter = new RateLimiter(options, nowMs);
    const serviceMs = options.serviceMs ?? 0;
    this.#service = { fromMs: serviceMs, toMs: serviceMs, atMs: nowMs, overMs: 0 };
    this.#server = createServer({ keepAliveTimeout: 120_000 }, (request, response) => {
      this.#answer(request, response).catch((error: Error) => {
        if (!response.headersSent) sendJson(response, 500, { model_server: error.message });
      });
    });
  }

  async open(): Promise<void> {
    while (this.#port === 0) {
      const port = FIRST_PORT + Math.floor(Math.random() * PORT_COUNT);
      if (await this.#listen(port)) this.#port = port;
    }
  }

  /** The address for `base_url`. */
  get url(): string {
    return `http://127.0.0.1:${this.#port}/v1`;
  }

  setCapacity(capacity: number): void {
    this.#station.setCapacity(capacity);
  }

  /** Changes the service time at once, or gradually over a time. */
  setServiceMs(serviceMs: number, { overMs = 0 }: { overMs?: number } = {}): void {
    const nowMs = this.#clock.nowMs();
    this.#service = { fromMs: this.#meanServiceMs(), toMs: serviceMs, atMs: nowMs, overMs };
  }

  /** Refuses all requests for a time, and asks for that pause. */
  pause(ms: number): void {
    this.#pausedUntilMs = this.#clock.nowMs() + ms;
  }

  /** Begins an outage. It also ends the requests that are present. */
  async goDown(outage: Outage): Promise<void> {
    this.#outage = outage;
    this.#station.setOpen("closed");
    for (const visitor of this.#visitors) visitor.abort();
    if (outage === "refuse") await this.#close();
  }

  async comeUp(): Promise<void> {
    if (this.#outage === "refuse" && !(await this.#listen(this.#port))) {
      throw new Error(`somebody has taken port ${this.#port}`);
    }
    this.#outage = null;
    this.#station.setOpen("open");
  }

  /** Resolves to the totals at the moment of the `count`th answer. */
  async whenServed(count: number): Promise<StationTotals> {
    const totals = this.#station.totals();
    if (totals.served >= count) return totals;
    const { promise, resolve } = Promise.withResolvers<StationTotals>();
    this.#milestones.push({ served: count, resolve });
    return promise;
  }

  stats(): ModelServerStats {
    const fates: Partial<Record<Fate, number>> = {};
    for (const { fate } of this.arrivals) fates[fate] = (fates[fate] ?? 0) + 1;
    return {
      ...this.#station.totals(),
      arrived: this.arrivals.length,
      fates,
      maxQueue: this.#station.maxQueue,
      maxPresent: this.#station.maxPresent,
      minutes: Array.from(this.#minutes, (minute) => minute ?? { arrived: 0, rateLimited: 0 }),
      atFirstArrival: this.#atFirstArrival,
      atLastAnswer: this.#atLastAnswer,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const visitor of this.#visitors) visitor.abort();
    await this.#close();
  }

  /** Resolves to false for a port that is taken. */
  async #listen(port: number): Promise<boolean> {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    const fail = (error: NodeJS.ErrnoException) =>
      error.code === "EADDRINUSE" ? resolve(false) : reject(error);
    this.#server.once("error", fail).listen({ port, host: "127.0.0.1", backlog: BACKLOG }, () => {
      this.#server.off("error", fail);
      resolve(true);
    });
    return promise;
  }

  #close(): Promise<void> {
    return closeServer(this.#server);
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = request.url ?? "/";
    if (path === "/stats") {
      sendJson(response, 200, this.stats());
      return;
    }
    if (path === "/v1/models") {
      sendJson(response, 200, { object: "list", data: [{ id: "test-model", object: "model" }] });
      return;
    }
    const { model, user, prompt } = readPrompt(await readBody(request));
    const arrival: Arrival = {
      line: user ?? prompt,
      model,
      atMs: this.#clock.nowMs(),
      fate: "under_way",
    };
    this.#admit(arrival, response);
    await this.#serve(arrival, { path, model, prompt, number: this.arrivals.length }, response);
  }

  #admit(arrival: Arrival, response: ServerResponse): void {
    this.#atFirstArrival ??= this.#station.totals();
    this.arrivals.push(arrival);
    this.#minute.arrived++;
    this.inFlight++;
    let isOver = false;
    const end = () => {
      if (isOver) return;
      isOver = true;
      this.inFlight--;
    };
    response.once("prefinish", end).once("close", end);
  }

  async #serve(
    arrival: Arrival,
    request: Parameters<typeof answerTo>[0],
    response: ServerResponse,
  ): Promise<void> {
    const outputTokens = this.#drawOutputTokens();
    const promptTokens = Math.ceil(request.prompt.length / 4);
    const refusal = this.#refusalOf(promptTokens + outputTokens);
    if (refusal !== null) {
      arrival.fate = refusal.fate;
      this.#refuse(response, refusal);
      return;
    }
    const visitor = new AbortController();
    this.#visitors.add(visitor);
    response.once("close", () => visitor.abort(GONE));
    const visit = await this.#station.visit(
      () => this.#drawServiceMs(outputTokens),
      visitor.signal,
    );
    this.#visitors.delete(visitor);
    if (visit === "gone") {
      arrival.fate = this.#outage === null ? "gone" : "down";
      this.#refuse(response, { fate: "down", waitMs: 0 });
      return;
    }
    if (visit === "turned_away") {
      arrival.fate = "overloaded";
      const waitMs = this.#options.overloadPauseMs ?? 0;
      this.#refuse(response, { fate: "overloaded", waitMs });
      return;
    }
    arrival.fate = "served";
    const answer = { ...answerTo(request), usage: usageOf(promptTokens, outputTokens) };
    sendJson(response, 200, answer, this.#rateLimiter.headers(this.#clock.nowMs()));
    this.#noteAnswer();
  }

  /** Returns the refusal of a request; null after charging the limits for one that may pass. */
  #refusalOf(tokens: number): { fate: Fate; waitMs: number } | null {
    const nowMs = this.#clock.nowMs();
    if (this.#outage !== null) return { fate: "down", waitMs: 0 };
    if (nowMs < this.#pausedUntilMs) {
      return { fate: "paused", waitMs: this.#pausedUntilMs - nowMs };
    }
    const waitMs = this.#rateLimiter.charge(tokens, nowMs);
    if (waitMs > 0) {
      this.#minute.rateLimited++;
      return { fate: "rate_limited", waitMs };
    }
    return null;
  }

  #refuse(response: ServerResponse, { fate, waitMs }: { fate: Fate; waitMs: number }): void {
    if (fate === "down") {
      if (typeof this.#outage === "number") sendJson(response, this.#outage, "Bad Gateway");
      else response.socket?.resetAndDestroy();
      return;
    }
    const status = fate === "overloaded" ? (this.#options.overloadStatus ?? 503) : 429;
    const headers = {
      ...this.#rateLimiter.headers(this.#clock.nowMs()),
      ...this.#retryHeaders(waitMs),
    };
    sendJson(response, status, errorEnvelope(status), headers);
  }

  #retryHeaders(waitMs: number): Record<string, string> {
    const { retryHint = "seconds" } = this.#options;
    if (waitMs === 0 || retryHint === "none") return {};
    if (retryHint === "milliseconds") return { "retry-after-ms": String(Math.ceil(waitMs)) };
    return { "retry-after": String(Math.ceil(waitMs / 1000)) };
  }

  get #minute(): { arrived: number; rateLimited: number } {
    const index = Math.floor((this.#clock.nowMs() - this.#startedAtMs) / MINUTE_MS);
    this.#minutes[index] ??= { arrived: 0, rateLimited: 0 };
    return this.#minutes[index];
  }

  #meanServiceMs(): number {
    const { fromMs, toMs, atMs, overMs } = this.#service;
    const part = overMs === 0 ? 1 : Math.min(1, (this.#clock.nowMs() - atMs) / overMs);
    return fromMs + (toMs - fromMs) * part;
  }

  #drawServiceMs(outputTokens: number): number {
    const { jitter = 0, perTokenMs = 0 } = this.#options;
    const variation = 1 + jitter * (2 * this.#random() - 1);
    return (this.#meanServiceMs() + perTokenMs * outputTokens) * variation;
  }

  #drawOutputTokens(): number {
    const [from, to] = this.#options.outputTokens ?? [16, 16];
    return from + Math.floor(this.#random() * (to - from + 1));
  }

  #noteAnswer(): void {
    const totals = this.#station.totals();
    this.#atLastAnswer = totals;
    const reached = this.#milestones.filter(({ served }) => served <= totals.served);
    this.#milestones = this.#milestones.filter(({ served }) => served > totals.served);
    for (const milestone of reached) milestone.resolve(totals);
  }
}

const usageOf = (prompt: number, output: number) => ({
  prompt_tokens: prompt,
  completion_tokens: output,
  total_tokens: prompt + output,
});
