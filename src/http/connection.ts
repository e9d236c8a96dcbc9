/** Reports the end of the connection of a request, shows a broken answer as one, and bounds the silence of a connection. */
import type { IncomingMessage, RequestListener, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { PublicError } from "../errors.ts";
import type { Log } from "../telemetry/log.ts";

/** The time for which a connection may be silent, unless a request is being carried out. */
export const SILENCE_MS = 300_000;
const KEEP_ALIVE_PROBE_MS = 30_000;

/** Calls `fn` once the answer is sent or its client is gone: at once if that has happened, as its event does not come again. */
export function whenClosed(outgoing: ServerResponse, fn: () => void): void {
  if (outgoing.closed) fn();
  else outgoing.once("close", fn);
}

/** Returns a signal that aborts when the client disconnects before it has its answer. */
export function abortedByClient(outgoing: ServerResponse): AbortSignal {
  const controller = new AbortController();
  whenClosed(outgoing, () => {
    if (!outgoing.writableFinished) controller.abort();
  });
  return controller.signal;
}

/**
 * Makes sure that the end of an unfinished answer looks like a failure. A client of HTTP/1.0, such as nginx where nothing else is
 * configured, takes the end of the connection for the end of an answer without a length. Only a reset means a failure to it.
 */
export function resetIfUnfinished({ req, socket, writableFinished }: ServerResponse): void {
  if (req.httpVersion === "1.0" && !writableFinished) socket?.resetAndDestroy();
}

/** Sends an answer. Rejects when its source fails or `signal` aborts, and the client then sees a broken connection. */
export async function sendStream(
  source: Readable,
  outgoing: ServerResponse,
  signal?: AbortSignal,
): Promise<void> {
  // The pipeline closes the connection by itself, so this has to come before it.
  const reset = () => resetIfUnfinished(outgoing);
  if (source.errored === null) source.once("error", reset);
  else reset();
  signal?.addEventListener("abort", reset, { once: true });
  await pipeline(source, outgoing, signal === undefined ? {} : { signal });
}

/** What a write or a pipeline says once the client has left. */
const CLIENT_GONE: readonly unknown[] = [
  "ERR_STREAM_PREMATURE_CLOSE",
  "ERR_STREAM_UNABLE_TO_PIPE",
  "ABORT_ERR",
];

export function isClientGone(err: unknown): boolean {
  const { name, code, syscall } = (err ?? {}) as NodeJS.ErrnoException;
  return syscall === "write" || name === "AbortError" || CLIENT_GONE.includes(code);
}

/** The fields that the log gets of a download. */
export interface DownloadFields {
  readonly file?: string;
  readonly batch?: string;
  readonly format?: string;
}

/**
 * Logs a download that broke off. A client that leaves is no fault, and can do so hundreds of times a second; nor is one that
 * deletes the file.
 */
export function logBroken(
  log: Log,
  fields: DownloadFields & { readonly request_id: string },
  err: unknown,
): void {
  if (isClientGone(err) || err instanceof PublicError) log.debug(fields, "download.broken");
  else log.warn({ ...fields, err }, "download.broken");
}

/**
 * Lets a client that waits for leave (`Expect: 100-continue`) send its body once something reads it. A request may be refused
 * before, and Node then closes the connection. A chunked body is read at once.
 */
export function continuing(answer: RequestListener): RequestListener {
  return (incoming, outgoing) => {
    const read = incoming._read.bind(incoming);
    incoming._read = (size) => {
      incoming._read = read;
      if (!outgoing.headersSent) outgoing.writeContinue();
      read(size);
    };
    answer(incoming, outgoing);
  };
}

/** Lifts the limit on silence, because an answer may take longer. TCP's own probes find dead clients. */
export function allowSilence({ socket }: IncomingMessage): void {
  socket.setTimeout(0);
  socket.setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
}

/**
 * Closes the connection of an answer of which its client has read nothing for too long. An answer whose next piece is still to
 * come may be silent for longer.
 */
export function closeUnread(outgoing: ServerResponse): void {
  outgoing.setTimeout(SILENCE_MS);
  outgoing.on("timeout", (socket: Socket) => {
    if (outgoing.writableLength > 0) socket.destroy();
    // Node does not ring again until something moves.
    else socket.setTimeout(SILENCE_MS);
  });
}
