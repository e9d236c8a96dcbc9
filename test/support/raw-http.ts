/** Sends HTTP by hand, for requests that no client library would send. */
import { once } from "node:events";
import { connect, type Socket } from "node:net";

export interface RawAnswer {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: string;
}

export class RawConnection implements Disposable {
  readonly socket: Socket;
  #received = "";

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.setEncoding("latin1");
    socket.on("data", (text: string) => {
      this.#received += text;
    });
    socket.on("error", () => {});
  }

  static async open(url: string): Promise<RawConnection> {
    const { hostname, port } = new URL(url);
    const socket = connect(Number(port), hostname);
    await once(socket, "connect");
    return new RawConnection(socket);
  }

  send(text: string): void {
    this.socket.write(text, "latin1");
  }

  /** Resolves to the next answer. Rejects when the connection ends without one. */
  async answer(): Promise<RawAnswer> {
    for (;;) {
      const answer = this.#takeAnswer();
      if (answer !== null) return answer;
      if (this.socket.readableEnded || this.socket.destroyed) {
        throw new Error(`the connection ended after "${this.#received}"`);
      }
      const over = new AbortController();
      const options = { signal: over.signal };
      await Promise.race([
        once(this.socket, "data", options),
        once(this.socket, "close", options),
      ]).finally(() => over.abort());
    }
  }

  /** Resolves at the end of the connection: whether it was reset. */
  wasReset(): Promise<boolean> {
    return new Promise((resolve) => this.socket.once("close", resolve));
  }

  #takeAnswer(): RawAnswer | null {
    const headEnd = this.#received.indexOf("\r\n\r\n");
    if (headEnd === -1) return null;
    const [statusLine = "", ...lines] = this.#received.slice(0, headEnd).split("\r\n");
    const headers = Object.fromEntries(
      lines.map((line) => {
        const colon = line.indexOf(":");
        return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
      }),
    );
    const end = headEnd + 4 + Number(headers["content-length"] ?? 0);
    if (this.#received.length < end) return null;
    const body = this.#received.slice(headEnd + 4, end);
    this.#received = this.#received.slice(end);
    return { status: Number(statusLine.split(" ")[1]), headers, body };
  }

  [Symbol.dispose](): void {
    this.socket.destroy();
  }
}

/** Sends one request on a connection of its own. */
export async function rawRequest(url: string, text: string): Promise<RawAnswer> {
  using connection = await RawConnection.open(url);
  connection.send(text);
  return await connection.answer();
}

export interface Part {
  readonly name: string;
  readonly content: string;
  readonly filename?: string;
  /** The header lines besides Content-Disposition. */
  readonly headers?: readonly string[];
}

export const BOUNDARY = "----a-boundary";

/** Returns a body of multipart/form-data. Strings are bytes (latin1). */
export function multipart(parts: readonly Part[], { isClosed = true } = {}): string {
  const written = parts.map(({ name, content, filename, headers = [] }) => {
    const disposition = `Content-Disposition: form-data; name="${name}"`;
    const file = filename === undefined ? "" : `; filename="${filename}"`;
    return `--${BOUNDARY}\r\n${[disposition + file, ...headers].join("\r\n")}\r\n\r\n${content}\r\n`;
  });
  return written.join("") + (isClosed ? `--${BOUNDARY}--\r\n` : "");
}

export const uploadRequest = (
  body: string,
  { type = `multipart/form-data; boundary=${BOUNDARY}`, length = body.length } = {},
): string =>
  [
    "POST /v1/files HTTP/1.1",
    "Host: localhost",
    `Content-Type: ${type}`,
    `Content-Length: ${length}`,
    "",
    body,
  ].join("\r\n");
