/**
 * The model server of the tests, of the conformance checks and of the demo: real HTTP, one answer at a time. What an
 * answer is, `answers` decides:
 *
 * - left out: the directives in the prompt (see directives.ts);
 * - a function: whatever it returns (see given.ts); it may be another one while the server runs;
 * - `"by_hand"`: the test itself, which takes each exchange with `next()`.
 *
 * Two other servers exist for reasons of their own: model-server.ts has a capacity, a queue and rates on a virtual clock, and
 * `bench/upstream.ts` does as little as possible, because its time is part of what the bench measures. Tests of the HTTP
 * client that break TLS or HTTP itself listen on a socket of their own.
 *
 * In a test: `await using upstream = await startUpstream()`. On its own, for tests that kill processes:
 * `npx node test/support/upstream.ts --port 0` prints its base URL; then `GET /received` shows what came,
 * and `POST /hold` and `POST /release` are the two methods of those names.
 *
 * A line is known by the `user` field of its body, where a test puts the `custom_id`; by its prompt when
 * there is none. Directives stand in the prompt, or in `user` when the prompt has none.
 */
import { EventEmitter, once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { parseArgs } from "node:util";
import { errorEnvelope } from "./answers.ts";
import { directivesFor } from "./directives.ts";
import { type Given, give } from "./given.ts";
import { readBody, readPrompt, sendJson } from "./model-http.ts";
import { obey } from "./obey.ts";

/** Connections that wait to be accepted. Of 5,000 at once a busy machine loses some beyond the usual 511, for minutes. */
const BACKLOG = 8_192;

export interface UpstreamOptions {
  readonly port?: number;
  /** What `GET /v1/models` lists. */
  readonly modelNames?: readonly string[];
  /** The key without which every request is answered 401. */
  readonly apiKey?: string;
  /** Left out: the directives of the prompts. */
  readonly answers?: Answers;
}

type Answers = ((asked: SeenRequest) => Given | Promise<Given>) | "by_hand";

/** What the upstream remembers of a request. */
export interface SeenRequest {
  readonly method: string;
  readonly url: string;
  /** The same without its query. */
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  /** As it came. */
  readonly body: string;
  /** Of the body; empty where it has none. */
  readonly model: string;
  readonly user: string;
}

/** A request that a test answers by hand. */
export interface Exchange extends SeenRequest {
  readonly response: ServerResponse;
  /** Resolves when the exchange is over, because it was answered or because the client left. */
  readonly closed: Promise<unknown>;
}

export async function startUpstream(options: UpstreamOptions = {}): Promise<TestUpstream> {
  const upstream = new TestUpstream(options);
  await upstream.listen(options.port ?? 0);
  return upstream;
}

export class TestUpstream implements AsyncDisposable {
  modelNames: readonly string[];
  answers: Answers | null;
  /** How often it was asked for its models. */
  modelListCount = 0;
  /** Answers `GET /v1/models`. */
  sayModels = (response: ServerResponse): void => {
    const data = this.modelNames.map((id) => ({ id, object: "model", owned_by: "test" }));
    sendJson(response, 200, { object: "list", data });
  };
  /** Requests per line. */
  readonly received = new Map<string, number>();
  /** All requests, in the order of their arrival, unless {@link forget} was called. */
  readonly seen: SeenRequest[] = [];
  total = 0;
  inFlight = 0;
  maxInFlight = 0;
  /** Connections opened so far. */
  connectionCount = 0;
  readonly #apiKey: string | null;
  readonly #server: Server;
  readonly #milestones: { isReached: () => boolean; resolve: () => void }[] = [];
  readonly #events = new EventEmitter();
  #isForgetful = false;
  #held: (() => void)[] | null = null;
  readonly #arrived: Exchange[] = [];
  readonly #awaiting: ((exchange: Exchange) => void)[] = [];

  constructor({ modelNames = ["test-model"], apiKey, answers }: UpstreamOptions = {}) {
    this.modelNames = modelNames;
    this.answers = answers ?? null;
    this.#apiKey = apiKey ?? null;
    this.#server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
      this.#answer(request, response).catch((error: Error) => {
        if (!response.headersSent) sendJson(response, 500, { test_upstream: error.message });
      });
    });
    this.#server.on("connection", () => {
      this.connectionCount++;
    });
  }

  async listen(port: number): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#server.once("error", reject);
    this.#server.listen({ port, host: "127.0.0.1", backlog: BACKLOG }, resolve);
    await promise;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** For `base_url`. */
  get url(): string {
    return `http://127.0.0.1:${this.port}/v1`;
  }

  /** From now on requests are read and counted, but answered only after {@link release}. */
  hold(): void {
    this.#held ??= [];
  }

  release(): void {
    const held = this.#held ?? [];
    this.#held = null;
    for (const letGo of held) letGo();
  }

  /** Keeps no requests from now on, so that millions of them take no memory. */
  forget(): void {
    this.#isForgetful = true;
  }

  /** The next request to answer by hand, in the order of their arrival. */
  next(): Promise<Exchange> {
    const exchange = this.#arrived.shift();
    if (exchange !== undefined) return Promise.resolve(exchange);
    const { promise, resolve } = Promise.withResolvers<Exchange>();
    this.#awaiting.push(resolve);
    return promise;
  }

  /** Resolves when `count` requests have been received in all. */
  reached(count: number): Promise<void> {
    return this.#milestone(() => this.total >= count);
  }

  /** Resolves when `count` different lines have been received. */
  reachedLines(count: number): Promise<void> {
    return this.#milestone(() => this.received.size >= count);
  }

  async #milestone(isReached: () => boolean): Promise<void> {
    if (isReached()) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#milestones.push({ isReached, resolve });
    await promise;
  }

  /** Resolves when no request is in flight. */
  async idle(): Promise<void> {
    while (this.inFlight > 0) await once(this.#events, "left");
  }

  /** Resets every connection and frees the port. */
  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#server.close(() => resolve());
    this.#server.closeAllConnections();
    await promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const closed = once(response, "close");
    const { url = "/", method = "GET", headers } = request;
    const path = url.split("?")[0] as string;
    const asked = { method, url, path, headers, body: await readBody(request) };
    if (this.answers !== null) {
      const seen = this.#note({ ...asked, ...modelAndUser(asked.body) }, response);
      this.total++;
      this.#announce();
      if (this.answers === "by_hand") this.#handOver({ ...seen, response, closed });
      else await give(response, await this.answers(seen));
    } else if (!this.#control(request, path, response) && !this.#refuse(asked, response)) {
      const prompt = readPrompt(asked.body);
      this.#note({ ...asked, model: prompt.model, user: prompt.user ?? "" }, response);
      await this.#complete(path, prompt, response);
    }
  }

  #handOver(exchange: Exchange): void {
    const taker = this.#awaiting.shift();
    if (taker === undefined) this.#arrived.push(exchange);
    else taker(exchange);
  }

  /** Whether it was answered without a model: a wrong key, the list of models, another GET. */
  #refuse(
    { method, path, headers }: Omit<SeenRequest, "model" | "user">,
    response: ServerResponse,
  ) {
    if (this.#apiKey !== null && headers.authorization !== `Bearer ${this.#apiKey}`) {
      sendJson(response, 401, errorEnvelope(401));
    } else if (path === "/v1/models") {
      this.modelListCount++;
      this.sayModels(response);
    } else if (method === "GET") {
      sendJson(response, 404, errorEnvelope(404));
    } else return false;
    return true;
  }

  /** Counts a request until its answer is complete. */
  #note(seen: SeenRequest, response: ServerResponse): SeenRequest {
    if (!this.#isForgetful) this.seen.push(seen);
    this.inFlight++;
    this.maxInFlight = Math.max(this.maxInFlight, this.inFlight);
    // `prefinish` comes before the last byte leaves: a client that has its answer is in flight no more.
    let isOver = false;
    const leave = () => {
      if (isOver) return;
      isOver = true;
      this.inFlight--;
      this.#events.emit("left");
    };
    response.once("prefinish", leave).once("close", leave);
    return seen;
  }

  async #complete(
    path: string,
    { model, user, prompt }: ReturnType<typeof readPrompt>,
    response: ServerResponse,
  ): Promise<void> {
    const number = ++this.total;
    const line = user ?? prompt;
    const count = (this.received.get(line) ?? 0) + 1;
    this.received.set(line, count);
    this.#announce();
    if (this.#held !== null) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#held.push(resolve);
      await promise;
    }
    const directives = directivesFor(prompt.includes("[[") ? prompt : (user ?? ""), count);
    if (directives.delayMs > 0) await delay(directives.delayMs);
    await obey(directives, { path, model, prompt, number }, response);
  }

  #announce(): void {
    for (const milestone of this.#milestones.splice(0)) {
      if (milestone.isReached()) milestone.resolve();
      else this.#milestones.push(milestone);
    }
  }

  #control({ method }: IncomingMessage, path: string, response: ServerResponse): boolean {
    if (method === "GET" && path === "/received") {
      const { total, inFlight, maxInFlight } = this;
      const received = Object.fromEntries(this.received);
      sendJson(response, 200, { total, inFlight, maxInFlight, received });
    } else if (method === "POST" && path === "/hold") {
      this.hold();
      sendJson(response, 200, {});
    } else if (method === "POST" && path === "/release") {
      this.release();
      sendJson(response, 200, {});
    } else return false;
    return true;
  }
}

function modelAndUser(body: string): { model: string; user: string } {
  const { model = "", user = "" } = body.startsWith("{") ? fieldsOf(body) : {};
  return { model: String(model), user: String(user) };
}

/** A test may send what is no JSON. */
function fieldsOf(body: string): Record<string, unknown> {
  try {
    return JSON.parse(body) as Record<string, unknown>;
  } catch {
    return {};
  }
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { port: { type: "string", default: "0" } } });
  const upstream = await startUpstream({ port: Number(values.port) });
  upstream.forget();
  process.stdout.write(`${upstream.url}\n`);
}
