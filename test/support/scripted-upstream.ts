/**
 * A model server that a test answers by hand: every request is handed over, and nothing goes back but what the test
 * writes.
 *
 * In a test: `await using upstream = await ScriptedUpstream.start()`, then `await upstream.next()`.
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Exchange {
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: Buffer;
  /** To answer with. */
  readonly response: ServerResponse;
  /** Resolves when the exchange is over, because it was answered or because the other side went. */
  readonly closed: Promise<unknown>;
}

export class ScriptedUpstream implements AsyncDisposable {
  /** Requests so far. */
  count = 0;
  readonly #server: Server;
  readonly #arrived: Exchange[] = [];
  readonly #waiting: ((exchange: Exchange) => void)[] = [];

  private constructor() {
    this.#server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
      void this.#take(request, response);
    });
  }

  static async start(): Promise<ScriptedUpstream> {
    const upstream = new ScriptedUpstream();
    upstream.#server.listen(0, "127.0.0.1");
    await once(upstream.#server, "listening");
    return upstream;
  }

  /** For `base_url`. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/v1`;
  }

  /** The next request, in the order of their arrival. */
  next(): Promise<Exchange> {
    const exchange = this.#arrived.shift();
    if (exchange !== undefined) return Promise.resolve(exchange);
    const { promise, resolve } = Promise.withResolvers<Exchange>();
    this.#waiting.push(resolve);
    return promise;
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const closed = once(response, "close");
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const { url: path = "", headers } = request;
    const exchange = { path, headers, body: Buffer.concat(chunks), response, closed };
    this.count++;
    const taker = this.#waiting.shift();
    if (taker === undefined) this.#arrived.push(exchange);
    else taker(exchange);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, "close");
  }
}

/** Ends an exchange with one JSON value. */
export function answerWith({ response }: Exchange, value: unknown, status = 200): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}

/** Ends it as a chat model would. */
export const answerChat = (exchange: Exchange, content = "Hello"): void =>
  answerWith(exchange, {
    id: "chatcmpl-1",
    object: "chat.completion",
    choices: [{ index: 0, message: { role: "assistant", content }, finish_reason: "stop" }],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  });
