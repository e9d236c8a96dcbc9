/** Stands before a server, such as a database, and does what broken networks do. */
import { connect, createServer, type Socket } from "node:net";
import { listening } from "./listening.ts";

type Network =
  | "well"
  /** Breaks every connection, and each new one at once. */
  | "cut"
  /** Loses every packet: connections stay open, new ones seem to succeed, and nothing arrives. */
  | "silent";

export class TcpProxy {
  port = 0;
  #target: { readonly host: string; readonly port: number };
  readonly #pairs = new Set<readonly [Socket, Socket]>();
  #network: Network = "well";
  /** The text in a statement of a transaction whose commit is to have no answer; null for none. */
  #unanswered: string | null = null;
  #answer: "none" | "unknown" = "none";
  /** The connections whose transaction has had such a statement. */
  readonly #inDoubt = new Set<Socket>();

  /** Stands before the database of the URL. */
  static async before(databaseUrl: string): Promise<TcpProxy> {
    const { hostname: host, port } = new URL(databaseUrl);
    const proxy = new TcpProxy({ host, port: Number(port) });
    proxy.port = await listening(
      createServer({ allowHalfOpen: true }, (client) => proxy.#accept(client)),
    );
    return proxy;
  }

  private constructor(target: { readonly host: string; readonly port: number }) {
    this.#target = target;
  }

  /** The same database, by way of this proxy. */
  urlOf(databaseUrl: string): string {
    const url = new URL(databaseUrl);
    url.port = String(this.port);
    return url.href;
  }

  /** Leads new connections to another port of the host. */
  leadTo(port: number): void {
    this.#target = { ...this.#target, port };
  }

  /**
   * The database makes the next commit of a transaction with such a statement. The connection breaks before the answer, or the
   * answer says that the end is not known.
   */
  loseCommitOf(statement: string, answer: "none" | "unknown" = "none"): void {
    this.#unanswered = statement;
    this.#answer = answer;
  }

  /** Whether such a commit is still to come. */
  get isCommitAwaited(): boolean {
    return this.#unanswered !== null;
  }

  set network(network: Network) {
    const before = this.#network;
    this.#network = network;
    // What was lost would be missing in the middle of a conversation, so that no connection can go on.
    if (network === "cut" || before === "silent") {
      for (const pair of this.#pairs) for (const socket of pair) socket.destroy();
    }
  }

  #accept(client: Socket): void {
    if (this.#network === "cut") {
      client.destroy();
      return;
    }
    const server = connect({ ...this.#target, allowHalfOpen: true });
    const pair = [client, server] as const;
    this.#pairs.add(pair);
    const end = () => {
      // Neither side hears anything of an end, either.
      if (this.#network === "silent") return;
      this.#pairs.delete(pair);
      for (const socket of pair) socket.destroy();
    };
    const pass = (from: Socket, to: Socket, change: (bytes: Buffer) => Buffer) =>
      from
        .on("error", end)
        .on("end", end)
        .on("close", end)
        .on("data", (bytes) => {
          if (this.#network === "well") to.write(change(bytes));
        });
    client.on("data", (bytes) => this.#follow(client, bytes));
    const isInDoubt = () => this.#inDoubt.has(client) && this.#unanswered === null;
    server.prependListener("data", () => {
      if (isInDoubt() && this.#answer === "none") end();
    });
    pass(client, server, (bytes) => bytes);
    pass(server, client, (bytes) => (isInDoubt() ? this.#unknownEnd(client) : bytes));
  }

  #unknownEnd(client: Socket): Buffer {
    this.#inDoubt.delete(client);
    return UNKNOWN_END;
  }

  #follow(client: Socket, bytes: Buffer): void {
    if (this.#unanswered !== null && bytes.includes(this.#unanswered)) this.#inDoubt.add(client);
    if (this.#inDoubt.has(client) && bytes.includes("commit\0")) this.#unanswered = null;
  }
}

const message = (type: string, content: string): Buffer => {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(4 + content.length);
  return Buffer.concat([Buffer.from(type), length, Buffer.from(content)]);
};

/** The answer to a commit of which the database does not know whether it was made, and that it takes the next statement. */
const UNKNOWN_END = Buffer.concat([
  message("E", "SERROR\0VERROR\0C40003\0Mresult is ambiguous\0\0"),
  message("Z", "I"),
]);
