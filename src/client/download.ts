/**
 * Reads the content of a file as a stream. When the connection breaks, the next request asks for the rest of it, so that
 * a large download ends over a bad network.
 */
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import { APIError } from "openai";
import { type Clock, sleep } from "../clock.ts";
import { complain } from "../terminal/lines.ts";
import { bytes, duration } from "../words.ts";
import { CommandFailure } from "./failure.ts";
import { isPassing, type Server } from "./server.ts";

/** The tries in a row that bring no byte. */
const MAX_TRIES = 8;
const TRY_AGAIN_MS = { first: 500, last: 30_000 };

interface Downloading {
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

export const contentOf = (server: Server, fileId: string, options: Downloading): Readable =>
  Readable.from(pieces(server, fileId, options), { objectMode: false });

async function* pieces(
  server: Server,
  fileId: string,
  { clock, signal }: Downloading,
): AsyncGenerator<Buffer> {
  let received = 0;
  let tries = 0;
  for (;;) {
    try {
      const { content, wholeBytes } = await restOf(server, fileId, { start: received, signal });
      for await (const piece of content) {
        received += piece.length;
        tries = 0;
        yield piece;
      }
      if (received >= wholeBytes) return;
      if (++tries >= MAX_TRIES)
        throw new CommandFailure(endless(`${server.url} sends nothing`, fileId, received));
    } catch (error) {
      const problem = isPassing(error) ? server.explain(error) : null;
      if (signal.aborted || problem === null) throw error;
      if (++tries >= MAX_TRIES)
        throw new CommandFailure(endless(problem, fileId, received), { cause: error });
      const waitMs = Math.min(TRY_AGAIN_MS.first * 2 ** tries, TRY_AGAIN_MS.last);
      complain(
        `${problem}; ${fileId} goes on after ${bytes(received)} in ${duration(waitMs / 1000)}`,
      );
      await sleep(clock, waitMs, signal);
    }
  }
}

const endless = (problem: string, fileId: string, received: number) =>
  `${problem}; ${MAX_TRIES} tries in a row have brought nothing more of ${fileId} than ${bytes(received)}`;

interface Rest {
  readonly content: AsyncIterable<Buffer>;
  /** The length of the file, where the server may have sent a part of the rest; else 0. */
  readonly wholeBytes: number;
}

async function* nothing(): AsyncGenerator<Buffer> {}

async function restOf(
  { openai, url }: Server,
  fileId: string,
  { start, signal }: { readonly start: number; readonly signal: AbortSignal },
): Promise<Rest> {
  const headers = start === 0 ? {} : { range: `bytes=${start}-` };
  const response = await openai.files.content(fileId, { signal, headers }).catch(nothingIfAtEnd);
  if (response === null || response.body === null) return { content: nothing(), wholeBytes: 0 };
  // A server that does not know ranges sends all of it again.
  const sent = response.status === 206 ? rangeIn(response.headers, start) : ALL;
  if (sent.start > start)
    throw new CommandFailure(`${url} leaves out a part of ${fileId}, after ${bytes(start)}`);
  const body = Readable.fromWeb(response.body as ReadableStream<Uint8Array>);
  return { content: withoutFirst(start - sent.start, body), wholeBytes: sent.wholeBytes };
}

const ALL = { start: 0, wholeBytes: 0 };

/** A server may send another range than the one it was asked for, and a part of it (RFC 9110, 15.3.7). */
function rangeIn(headers: Headers, asked: number): typeof ALL {
  const range = headers.get("content-range") ?? "";
  const [, start, whole] = /^bytes (\d{1,15})-\d{1,15}\/(\d{1,15}|\*)$/.exec(range) ?? [];
  if (start === undefined) return { start: asked, wholeBytes: 0 };
  return { start: Number(start), wholeBytes: whole === "*" ? 0 : Number(whole) };
}

async function* withoutFirst(skipped: number, body: Readable): AsyncGenerator<Buffer> {
  let skip = skipped;
  for await (const piece of body) {
    const part = bufferOf(piece as Uint8Array);
    if (skip < part.length) yield part.subarray(skip);
    skip = Math.max(0, skip - part.length);
  }
}

/** The bytes that are missing begin behind the end: there are none. */
function nothingIfAtEnd(error: unknown): null {
  if (error instanceof APIError && error.status === 416) return null;
  throw error;
}

const bufferOf = ({ buffer, byteOffset, byteLength }: Uint8Array): Buffer =>
  Buffer.from(buffer, byteOffset, byteLength);
