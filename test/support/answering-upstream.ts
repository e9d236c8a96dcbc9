/** A model server whose every answer a function decides; what it says may change while it runs. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Asked {
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly model: string;
  readonly user: string;
  readonly body: string;
}

export interface Given {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** Text goes as it is, anything else as JSON. */
  readonly body?: unknown;
}

type Answering = (asked: Asked) => Given | Promise<Given>;

export const GOOD: Given = {
  body: {
    id: "chatcmpl-1",
    object: "chat.completion",
    choices: [{ index: 0, message: { role: "assistant", content: "Hi" }, finish_reason: "stop" }],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  },
};

export const refusal = (status: number, error: object): Given => ({ status, body: { error } });

export class AnsweringUpstream implements AsyncDisposable {
  answer: Answering;
  readonly asked: Asked[] = [];
  readonly #server: Server;

  private constructor(answer: Answering) {
    this.answer = answer;
    this.#server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
      void this.#take(request, response);
    });
  }

  static async start(answer: Answering = () => GOOD): Promise<AnsweringUpstream> {
    const upstream = new AnsweringUpstream(answer);
    upstream.#server.listen(0, "127.0.0.1");
    await once(upstream.#server, "listening");
    return upstream;
  }

  /** For `base_url`. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/v1`;
  }

  /** How often a line or a model was asked. */
  countOf(match: (asked: Asked) => boolean): number {
    return this.asked.filter(match).length;
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString();
    const { model = "", user = "" } = body === "" ? {} : JSON.parse(body);
    const asked = { path: request.url ?? "", headers: request.headers, model, user, body };
    this.asked.push(asked);
    const given = await this.answer(asked);
    const isText = typeof given.body === "string";
    const type = isText ? "text/plain" : "application/json";
    response.writeHead(given.status ?? 200, { "content-type": type, ...given.headers });
    response.end(isText ? given.body : JSON.stringify(given.body));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, "close");
  }
}
