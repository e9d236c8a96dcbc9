/** A webhook endpoint over real HTTP. It records all requests and answers as a test demands. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { closeServer } from "./model-http.ts";
import { named } from "./waits.ts";

export interface ReceiverOptions {
  readonly port?: number;
  readonly host?: string;
}

/** A status with its headers, or a fault in the place of an answer. */
export type Reaction =
  | { readonly status: number; readonly headers?: Record<string, string>; readonly body?: string }
  | "reset"
  | "hang"
  /** A good status whose body never ends. */
  | "endless";

export interface ReceivedEvent {
  readonly method: string;
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly body: string;
  /** The address to which the sender connected. */
  readonly address: string;
}

const OK: Reaction = { status: 200 };

export async function startReceiver(options: ReceiverOptions = {}): Promise<Receiver> {
  const receiver = new Receiver();
  await receiver.listen(options);
  return receiver;
}

export class Receiver implements AsyncDisposable {
  readonly seen: ReceivedEvent[] = [];
  connectionCount = 0;
  inFlight = 0;
  maxInFlight = 0;
  readonly #server: Server;
  readonly #waiting = new Set<() => void>();
  #reactions: Reaction[] = [];
  #lasting: Reaction = OK;

  constructor() {
    this.#server = createServer((request, response) => {
      this.#receive(request, response).catch(() => response.destroy());
    });
    this.#server.on("connection", () => {
      this.connectionCount++;
    });
  }

  async listen({ port = 0, host = "127.0.0.1" }: ReceiverOptions): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#server.once("error", reject).listen(port, host, resolve);
    await promise;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/hook`;
  }

  /** Sets the reactions to the next requests. Later requests get a 200. */
  reactNext(...reactions: readonly Reaction[]): void {
    this.#reactions.push(...reactions);
  }

  /** Sets the reaction to all requests from now on. */
  reactAlways(reaction: Reaction): void {
    this.#lasting = reaction;
  }

  /** Resolves once `count` requests have come in total. */
  async reached(count: number): Promise<void> {
    while (this.seen.length < count) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.add(resolve);
      await named(() => `${count} events at the receiver, which has ${this.seen.length}`, promise);
    }
  }

  close(): Promise<void> {
    return closeServer(this.#server);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #receive(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.inFlight++;
    this.maxInFlight = Math.max(this.maxInFlight, this.inFlight);
    response.once("close", () => {
      this.inFlight--;
    });
    const { method = "", url = "", socket } = request;
    const address = socket.localAddress ?? "";
    const headers = request.headers as Record<string, string>;
    const body = await text(request);
    this.seen.push({ method, path: url, headers, body, address });
    for (const check of this.#waiting) check();
    this.#waiting.clear();
    react(this.#reactions.shift() ?? this.#lasting, response);
  }
}

function react(reaction: Reaction, response: ServerResponse): void {
  if (reaction === "hang") return;
  if (reaction === "reset") {
    response.socket?.resetAndDestroy();
    return;
  }
  if (reaction === "endless") {
    const more = () => {
      while (!response.destroyed && response.write("x".repeat(16_384)));
    };
    response.writeHead(200).on("drain", more);
    more();
    return;
  }
  response.writeHead(reaction.status, reaction.headers).end(reaction.body);
}
