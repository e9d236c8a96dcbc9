/**
 * Stands in front of an S3 server and stops chosen exchanges at a step of them. A test can then kill the process that waits
 * there, so at a step that it knows.
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { pipeline } from "node:stream/promises";
import { atTestEnd } from "./leftovers.ts";
import { closeServer } from "./model-http.ts";
import { named } from "./waits.ts";

export interface Stop {
  readonly method: string;
  /** Matches the path and the query. */
  readonly path: RegExp;
  /**
   * The step: before the server gets the request, in its body, before the client gets the answer, or in that. A request that is
   * `late` has come as a whole, and goes on to the server also when its client is gone.
   */
  readonly at:
    | "request"
    | "late"
    | "answer"
    | { readonly sentBytes: number }
    | { answeredBytes: number };
}

export interface StepProxy extends AsyncDisposable {
  readonly url: string;
  /** Resolves once so many exchanges have stopped there. They go on with {@link release}. */
  stopAt(stop: Stop, count?: number): Promise<void>;
  /** Lets everything pass, from now on and what has stopped. */
  release(): void;
  /** Resolves once the exchanges under way have ended. */
  ended(): Promise<void>;
}

interface OpenStop extends Stop {
  readonly reached: () => void;
}

export async function startStepProxy(serverUrl: string): Promise<StepProxy> {
  let stops: OpenStop[] = [];
  let released = Promise.withResolvers<void>();
  const underWay = new Set<Promise<void>>();
  const server = createServer((asked, answer) => {
    const { method, url = "" } = asked;
    const stop = stops.find((each) => each.method === method && each.path.test(url));
    const wait = () => {
      stop?.reached();
      return released.promise;
    };
    // One that asked may be gone.
    const passing = exchange(asked, answer, { serverUrl, at: stop?.at, wait })
      .catch(() => void answer.destroy())
      .finally(() => underWay.delete(passing));
    underWay.add(passing);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const release = () => {
    stops = [];
    released.resolve();
    released = Promise.withResolvers<void>();
  };
  const close = async () => {
    release();
    await closeServer(server);
  };
  atTestEnd(close);
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    stopAt: (stop, count = 1) => {
      const { promise, resolve } = Promise.withResolvers<void>();
      let left = count;
      stops.push({ ...stop, reached: () => void (--left === 0 && resolve()) });
      return named(() => `${stop.method} ${stop.path} at ${JSON.stringify(stop.at)}`, promise);
    },
    release,
    ended: async () => {
      await Promise.all(underWay);
    },
    [Symbol.asyncDispose]: close,
  };
}

interface Passing {
  readonly serverUrl: string;
  readonly at: Stop["at"] | undefined;
  readonly wait: () => Promise<void>;
}

/** The host that was signed stays in the headers. */
async function exchange(
  asked: IncomingMessage,
  answer: ServerResponse,
  { serverUrl, at, wait }: Passing,
): Promise<void> {
  const body = at === "late" ? Readable.from([await buffer(asked)]) : asked;
  if (at === "request" || at === "late") await wait();
  if (at !== "late" && asked.socket.destroyed) return;
  const { hostname, port } = new URL(serverUrl);
  const { method, url: path, headers } = asked;
  const sent = request({ hostname, port, method, path, headers });
  if (at !== "late") answer.once("close", () => sent.destroy());
  const responded = once(sent, "response") as Promise<[IncomingMessage]>;
  const sentBytes = typeof at === "object" && "sentBytes" in at ? at.sentBytes : Infinity;
  await Promise.all([
    pipeline(body, (pieces) => stopping(pieces, sentBytes, wait), sent),
    responded.then(async ([got]) => {
      if (at === "answer") await wait();
      answer.writeHead(got.statusCode ?? 502, got.headers);
      const bytes = typeof at === "object" && "answeredBytes" in at ? at.answeredBytes : Infinity;
      await pipeline(got, (body) => stopping(body, bytes, wait), answer);
    }),
  ]);
}

async function* stopping(body: AsyncIterable<Buffer>, afterBytes: number, wait: Passing["wait"]) {
  let leftBytes = afterBytes;
  for await (const chunk of body) {
    if (chunk.length < leftBytes) {
      leftBytes -= chunk.length;
      yield chunk;
      continue;
    }
    yield chunk.subarray(0, leftBytes);
    await wait();
    yield chunk.subarray(leftBytes);
    leftBytes = Infinity;
  }
}
