/**
 * The model server of the tests, of the conformance checks and of the demo: real HTTP, one answer at a time. The option
 * `answers` decides the answers:
 *
 * - The directives in the prompt decide when it is left out (see directives.ts).
 * - A function returns the answer (see given.ts). A test may replace it while the server runs.
 * - With `"by_hand"`, the test takes each exchange with `next()`.
 *
 * Two other servers exist for reasons of their own. model-server.ts has a capacity, a queue and rates on a virtual
 * clock. `bench/upstream.ts` does as little as possible, because its time is part of what the bench measures. Tests of
 * the HTTP client that break TLS or HTTP itself listen on a socket of their own.
 *
 * A test writes `await using upstream = await startUpstream()`. Tests that kill processes run it as a process: `npx
 * node test/support/upstream.ts --port 0` prints its base URL. Then `GET /received` returns the requests so far, and
 * `POST /hold` and `POST /release` call the methods of those names.
 *
 * The `user` field of the body identifies a line, and a test puts the `custom_id` there. Without the field the prompt
 * does. Directives stand in the prompt, or in `user` when the prompt has none.
 */
import { EventEmitter, once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { parseArgs } from "node:util";
import { errorEnvelope } from "./answers.ts";
import { directivesFor } from "./directives.ts";
import { type Given, give } from "./given.ts";
import { closeServer, readBody, readPrompt, sendJson } from "./model-http.ts";
import { obey } from "./obey.ts";
import { named } from "./waits.ts";

/**
 * The connections that may wait to be accepted. With the usual 511, a busy machine loses some of 5,000 at once, for
 * minutes.
 */
const BACKLOG = 8_192;

export interface UpstreamOptions {
  readonly port?: number;
  /** The models that `GET /v1/models` lists. */
  readonly modelNames?: readonly string[];
  /** The key; a request without it gets a 401. */
  readonly apiKey?: string;
  /** The source of the answers; the directives of the prompts when it is left out. */
  readonly answers?: Answers;
}

type Answers = ((asked: SeenRequest) => Given | Promise<Given>) | "by_hand";

/** The record of a request. */
export interface SeenRequest {
  readonly method: string;
  readonly url: string;
  /** The URL without its query. */
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  /** The body as it came. */
  readonly body: string;
  /** The model in the body; empty without one. */
  readonly model: string;
  readonly user: string;
}

/** A request that a test answers by hand. */
export interface Exchange extends SeenRequest {
  readonly response: ServerResponse;
  /** Resolves at the end of the exchange: after its answer, or when the client disconnects. */
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
  /** The key that it accepts; null for any. */
  apiKey: string | null;
  /** The number of requests for the list of models. */
  modelListCount = 0;
  /** Answers `GET /v1/models`. */
  sayModels = (response: ServerResponse): void => {
    const data = this.modelNames.map((id) => ({ id, object: "model", owned_by: "test" }));
    sendJson(response, 200, { object: "list", data });
  };
  /** The number of requests by line. */
  readonly received = new Map<string, number>();
  /** All requests, in the order of their arrival, unless {@link forget} was called. */
  readonly seen: SeenRequest[] = [];
  total = 0;
  inFlight = 0;
  maxInFlight = 0;
  /** The number of connections so far. */
  connectionCount = 0;
  readonly #server: Server;
  #openCount = 0;
  readonly #milestones: { isReached: () => boolean; resolve: () => void }[] = [];
  readonly #events = new EventEmitter();
  #isForgetful = false;
  readonly #held: (() => void)[] = [];
  /** The number of the last request that is answered at once. */
  #holdsAfter = Number.POSITIVE_INFINITY;
  readonly #arrived: Exchange[] = [];
  readonly #awaiting: ((exchange: Exchange) => void)[] = [];

  constructor({ modelNames = ["test-model"], apiKey, answers }: UpstreamOptions = {}) {
    this.modelNames = modelNames;
    this.answers = answers ?? null;
    this.apiKey = apiKey ?? null;
    this.#server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
      this.#answer(request, response).catch((error: Error) => {
        if (!response.headersSent) sendJson(response, 500, { test_upstream: error.message });
      });
    });
    this.#server.on("connection", (socket) => {
      this.connectionCount++;
      this.#openCount++;
      socket.once("close", () => {
        this.#openCount--;
        this.#events.emit("closed");
      });
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

  /** The address for `base_url`. */
  get url(): string {
    return `http://127.0.0.1:${this.port}/v1`;
  }

  /** Delays all answers until {@link release}. Requests are still read and counted. */
  hold(): void {
    this.holdAfter(0);
  }

  /**
   * Delays all answers after the first `count` until {@link release}. So a worker certainly gets some lines and holds
   * others, at whatever speed it works.
   */
  holdAfter(count: number): void {
    this.#holdsAfter = count;
  }

  release(): void {
    this.#holdsAfter = Number.POSITIVE_INFINITY;
    for (const answer of this.#held.splice(0)) answer();
  }

  /** Stops the record of requests, so that millions of them take no memory. */
  forget(): void {
    this.#isForgetful = true;
  }

  /** Resolves to the next request to answer by hand, in the order of their arrival. */
  next(): Promise<Exchange> {
    const exchange = this.#arrived.shift();
    if (exchange !== undefined) return Promise.resolve(exchange);
    const { promise, resolve } = Promise.withResolvers<Exchange>();
    this.#awaiting.push(resolve);
    return named(() => "the next request at the upstream", promise);
  }

  /** Resolves when `count` requests have come in total. */
  reached(count: number): Promise<void> {
    const describe = () => `${count} requests at the upstream, which has had ${this.total}`;
    return this.#milestone(describe, () => this.total >= count);
  }

  /** Resolves when requests of `count` different lines have come. */
  reachedLines(count: number): Promise<void> {
    const describe = () => `${count} lines at the upstream, which has had ${this.received.size}`;
    return this.#milestone(describe, () => this.received.size >= count);
  }

  async #milestone(describe: () => string, isReached: () => boolean): Promise<void> {
    if (isReached()) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#milestones.push({ isReached, resolve });
    await named(describe, promise);
  }

  /** Resolves when no request is in flight. */
  async idle(): Promise<void> {
    const describe = () => `the end of ${this.inFlight} requests at the upstream`;
    while (this.inFlight > 0) await named(describe, once(this.#events, "left"));
  }

  /** Resolves when no connection is open: all that a killed client has sent has arrived by then. */
  async disconnected(): Promise<void> {
    const describe = () => `the end of ${this.#openCount} connections at the upstream`;
    while (this.#openCount > 0) await named(describe, once(this.#events, "closed"));
  }

  /** Resets every connection and frees the port. */
  close(): Promise<void> {
    return closeServer(this.#server);
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

  /**
   * Answers a request that needs no model: a wrong key, the list of models, another GET. Returns false for any other.
   */
  #refuse(
    { method, path, headers }: Omit<SeenRequest, "model" | "user">,
    response: ServerResponse,
  ) {
    if (this.apiKey !== null && headers.authorization !== `Bearer ${this.apiKey}`) {
      sendJson(response, 401, errorEnvelope(401));
    } else if (path === "/v1/models") {
      this.modelListCount++;
      this.sayModels(response);
    } else if (method === "GET") {
      sendJson(response, 404, errorEnvelope(404));
    } else return false;
    return true;
  }

  /** Counts a request as in flight until its answer is complete. */
  #note(seen: SeenRequest, response: ServerResponse): SeenRequest {
    if (!this.#isForgetful) this.seen.push(seen);
    this.inFlight++;
    this.maxInFlight = Math.max(this.maxInFlight, this.inFlight);
    // `prefinish` comes before the last byte is sent. So a request is never in flight when its client has the answer.
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
    if (number > this.#holdsAfter) {
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

/** A test may send a body that is not JSON. */
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
