/** An HTTP proxy between networks: it forwards plain requests and opens tunnels. */
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import { connect, type Socket } from "node:net";
import { pipeline } from "node:stream";
import { listening } from "./listening.ts";

/** The answer of a proxy that does not forward. */
export type Refusal = { readonly status: number } | "silence";

export class TestProxy {
  /** The number of connections so far. */
  connectionCount = 0;
  /** The targets of all requests: an address, or `CONNECT` and a host. */
  readonly asked: string[] = [];
  /** The credentials of all requests. */
  readonly credentials: (string | undefined)[] = [];
  refusal: Refusal | null = null;
  port = 0;

  static async start(): Promise<TestProxy> {
    const proxy = new TestProxy();
    const server = createServer((incoming, response) => proxy.#forward(incoming, response));
    server.on("connect", (incoming: IncomingMessage, socket: Socket, head: Buffer) =>
      proxy.#openTunnel(incoming, { socket, head }),
    );
    server.on("connection", () => {
      proxy.connectionCount++;
    });
    proxy.port = await listening(server);
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  #note(text: string, { headers }: IncomingMessage): void {
    this.asked.push(text);
    this.credentials.push(headers["proxy-authorization"]);
  }

  #forward(incoming: IncomingMessage, response: ServerResponse): void {
    this.#note(String(incoming.url), incoming);
    if (this.refusal !== null) {
      if (this.refusal !== "silence") response.writeHead(this.refusal.status).end("no");
      return;
    }
    const { "proxy-authorization": _, ...headers } = incoming.headers;
    const outgoing = request(String(incoming.url), { method: incoming.method, headers });
    outgoing.on("response", (answer) => {
      response.writeHead(answer.statusCode ?? 0, answer.rawHeaders);
      pipeline(answer, response, () => {});
    });
    outgoing.on("error", () => response.destroy());
    incoming.pipe(outgoing);
  }

  #openTunnel(incoming: IncomingMessage, { socket, head }: { socket: Socket; head: Buffer }): void {
    this.#note(`CONNECT ${incoming.url}`, incoming);
    if (this.refusal !== null) {
      if (this.refusal !== "silence") socket.end(`HTTP/1.1 ${this.refusal.status} No\r\n\r\n`);
      return;
    }
    const [host, port] = String(incoming.url).split(":");
    const target = connect(Number(port), host, () => {
      socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
      target.write(head);
      pipeline(target, socket, target, () => {});
    });
    target.on("error", () => socket.destroy());
  }
}
