/** Stands between batchd and an S3 server, and does what networks and overloaded buckets do. */
import { once } from "node:events";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { atTestEnd } from "./leftovers.ts";

const SLOW_DOWN = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`;

export type Trouble =
  /** Answers every request with 503 `SlowDown`. */
  | { readonly kind: "slow_down" }
  /** Breaks each connection once so many bytes of the answer have gone through. */
  | { readonly kind: "cut"; readonly afterBytes: number }
  /** Takes requests and never answers. */
  | { readonly kind: "silent" };

export interface S3Proxy extends AsyncDisposable {
  readonly url: string;
  /** The method and the query of every request, such as `POST ?delete=`. */
  readonly requests: string[];
  /** Null: requests go through. */
  trouble: Trouble | null;
}

export async function startS3Proxy(serverUrl: string): Promise<S3Proxy> {
  const requests: string[] = [];
  const proxy = { requests, trouble: null as Trouble | null };
  const server = createServer((asked, answer) => {
    requests.push(`${asked.method} ${asked.url?.replace(/^[^?]*/, "")}`);
    if (proxy.trouble?.kind === "silent") asked.resume();
    else if (proxy.trouble?.kind === "slow_down") slowDown(asked, answer);
    else forward(asked, answer, { serverUrl, trouble: proxy.trouble });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = async () => {
    if (!server.listening) return;
    server.close();
    server.closeAllConnections();
    await once(server, "close");
  };
  atTestEnd(close);
  return Object.assign(proxy, {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: close,
  });
}

function slowDown(asked: IncomingMessage, answer: ServerResponse): void {
  asked.resume();
  asked.once("end", () => {
    answer.writeHead(503, { "content-type": "application/xml" }).end(SLOW_DOWN);
  });
}

interface Forwarding {
  readonly serverUrl: string;
  readonly trouble: Trouble | null;
}

/** The host that was signed stays in the headers. */
function forward(asked: IncomingMessage, answer: ServerResponse, forwarding: Forwarding): void {
  const { hostname, port } = new URL(forwarding.serverUrl);
  const { method, url: path, headers } = asked;
  const sent = request({ hostname, port, method, path, headers }, (got) => {
    answer.writeHead(got.statusCode ?? 502, got.headers);
    const { trouble } = forwarding;
    if (trouble?.kind === "cut") void cut(got, answer, trouble.afterBytes);
    else got.pipe(answer);
  });
  sent.on("error", () => answer.destroy());
  asked.on("error", () => sent.destroy());
  asked.pipe(sent);
}

async function cut(got: IncomingMessage, answer: ServerResponse, afterBytes: number) {
  let passedBytes = 0;
  for await (const chunk of got as AsyncIterable<Buffer>) {
    const piece = chunk.subarray(0, afterBytes - passedBytes);
    passedBytes += piece.length;
    await new Promise((written) => answer.write(piece, written));
    if (passedBytes < afterBytes) continue;
    answer.destroy();
    return;
  }
  answer.end();
}
