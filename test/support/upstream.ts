/**
 * A model server for tests: real HTTP, and it does what the lines tell it (see directives.ts).
 *
 * In a test: `await using upstream = await startUpstream()`. On its own, for tests that kill processes:
 * `npx node test/support/upstream.ts --port 0` prints its base URL; then `GET /received` tells what came,
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
import {
  answerOfSize,
  answerTo,
  errorEnvelope,
  fragileJson,
  type ModelRequest,
} from "./answers.ts";
import { type Directives, directivesFor } from "./directives.ts";

export interface UpstreamOptions {
  readonly port?: number;
  /** What `GET /v1/models` lists. */
  readonly modelNames?: readonly string[];
  /** The key without which every request is answered 401. */
  readonly apiKey?: string;
}

/** What the upstream remembers of a request. */
export interface SeenRequest {
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  /** As it came. */
  readonly body: string;
}

export async function startUpstream(options: UpstreamOptions = {}): Promise<TestUpstream> {
  const upstream = new TestUpstream(options);
  await upstream.listen(options.port ?? 0);
  return upstream;
}

export class TestUpstream implements AsyncDisposable {
  modelNames: readonly string[];
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

  constructor({ modelNames = ["test-model"], apiKey }: UpstreamOptions = {}) {
    this.modelNames = modelNames;
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
    this.#server.once("error", reject).listen(port, "127.0.0.1", resolve);
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
    const path = (request.url ?? "/").split("?")[0] as string;
    const body = await readBody(request);
    if (this.#control(request, path, response)) return;
    if (this.#apiKey !== null && request.headers.authorization !== `Bearer ${this.#apiKey}`) {
      sendJson(response, 401, errorEnvelope(401));
      return;
    }
    if (path === "/v1/models") {
      this.modelListCount++;
      this.sayModels(response);
      return;
    }
    if (request.method === "GET") {
      sendJson(response, 404, errorEnvelope(404));
      return;
    }
    if (!this.#isForgetful) this.seen.push({ path, headers: request.headers, body });
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
    await this.#complete(path, body, response);
  }

  async #complete(path: string, body: string, response: ServerResponse): Promise<void> {
    const { model, user, prompt } = readPrompt(body);
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

export async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

interface Prompt {
  readonly model: string;
  readonly user: string | null;
  readonly prompt: string;
}

/** The last message, the `input` or the `prompt`, as text. */
export function readPrompt(body: string): Prompt {
  const { model, user, messages, input, prompt } = JSON.parse(body);
  const text = textOf(messages?.at(-1)?.content ?? input ?? prompt ?? "");
  return { model: String(model), user: typeof user === "string" ? user : null, prompt: text };
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map(textOf).join(" ");
  const { text, content: inner } = (content ?? {}) as { text?: unknown; content?: unknown };
  return textOf(text ?? inner ?? "");
}

export function sendJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  response
    .writeHead(status, { "content-type": "application/json", ...headers })
    .end(JSON.stringify(body));
}

async function obey(
  directives: Directives,
  request: ModelRequest,
  response: ServerResponse,
): Promise<void> {
  const socket = response.socket;
  // The client has gone while its answer was held or delayed.
  if (socket === null) return;
  const { type, body } = bodyOf(directives, request);
  const half = body.subarray(0, Math.ceil(body.length / 2));
  switch (directives.fault) {
    case "hang":
      return;
    case "reset":
      socket.resetAndDestroy();
      return;
    case "garbage":
      socket.end("220 mail.example.com ESMTP ready\r\n\r\n");
      return;
    case "reset-mid":
      response.writeHead(200, { "content-type": type, "content-length": body.length });
      response.write(half, () => setImmediate(() => socket.resetAndDestroy()));
      return;
    case "none":
      response.writeHead(directives.status, {
        "content-type": type,
        "content-length": body.length,
        "x-request-id": `req-${request.number}`,
        ...directives.headers,
      });
      await writePieces(response, body, directives.pieces);
  }
}

function bodyOf(d: Directives, request: ModelRequest): { type: string; body: Buffer } {
  const as = (type: string, text: string) => ({ type, body: Buffer.from(text) });
  const json = (value: unknown) => as("application/json", JSON.stringify(value));
  const answer = answerTo(request);
  switch (d.body) {
    case "html":
      return as("text/html", `<html>\n<body>status ${d.status}</body>\n</html>\n`);
    case "text":
      return as("text/plain", `plain words for status ${d.status}`);
    case "empty":
      return as("text/plain", "");
    case "sse":
      return as("text/event-stream", `data: ${JSON.stringify(answer)}\n\ndata: [DONE]\n\n`);
    case "bigint":
      return as("application/json", fragileJson(request.prompt));
    case "truncate": {
      const text = JSON.stringify(answer);
      return as("application/json", text.slice(0, text.length / 2));
    }
    case "json":
      if (d.status !== 200) return json(errorEnvelope(d.status));
      if (d.bigBytes > 0) return as("application/json", answerOfSize(request, d.bigBytes));
      if (answer !== null) return json(answer);
      d.status = 404;
      return json({ detail: "Not Found" });
  }
}

async function writePieces(
  response: ServerResponse,
  body: Buffer,
  { count, everyMs }: Directives["pieces"],
): Promise<void> {
  const pieceBytes = Math.max(1, Math.ceil(body.length / count));
  for (let at = pieceBytes; at < body.length; at += pieceBytes) {
    response.write(body.subarray(at - pieceBytes, at));
    await delay(everyMs);
  }
  response.end(body.subarray(Math.max(0, Math.ceil(body.length / pieceBytes) - 1) * pieceBytes));
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { port: { type: "string", default: "0" } } });
  const upstream = await startUpstream({ port: Number(values.port) });
  upstream.forget();
  process.stdout.write(`${upstream.url}\n`);
}
