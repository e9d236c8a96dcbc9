/**
 * Converts a result file into a table on a thread of its own. A row of 64 MB, or a group of Parquet, takes longer than the
 * event loop may be blocked. The thread has one piece at a time, so it runs no further ahead than its reader.
 */
import { Worker } from "node:worker_threads";
import type { TableFormat } from "../contract/results.ts";

/** A message costs some tens of microseconds, so pieces gather to this size. */
const PIECE_BYTES = 256 * 1024;
/** A thread that needs more memory ends alone, and the server stays. */
const MEMORY = { maxOldGenerationSizeMb: 1024 } as const;
/** The build compiles the thread beside this file. */
const THREAD = new URL(
  import.meta.url.endsWith(".ts") ? "./conversion-thread.ts" : "./conversion-thread.js",
  import.meta.url,
);

/**
 * Yields the table of the rows in `source`. Throws when the source does, when it has a line that is no row, or when `signal`
 * aborts: a long row keeps its thread busy for seconds, which must not outlive its reader.
 */
export async function* converted(
  source: AsyncIterable<Buffer>,
  format: TableFormat,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  signal.throwIfAborted();
  const thread = new Worker(THREAD, { workerData: { format }, resourceLimits: MEMORY });
  const end = endOf(thread);
  const stop = () => {
    end.reason ??= signal.reason;
    void thread.terminate();
  };
  signal.addEventListener("abort", stop);
  try {
    for await (const piece of gathered(source)) yield* await answerOf(thread, end, piece);
    yield* await answerOf(thread, end, null);
  } finally {
    signal.removeEventListener("abort", stop);
    await thread.terminate();
  }
}

interface ThreadEnd {
  /** The reason for which the thread has ended; null while it runs. */
  reason: Error | null;
}

/** The thread may end while no answer is awaited, and an error without a listener would end the process. */
function endOf(thread: Worker): ThreadEnd {
  const end: ThreadEnd = { reason: null };
  const note = (reason: Error) => (end.reason ??= reason);
  thread
    .once("error", note)
    .once("exit", (code) => note(new Error(`the conversion ended early (${code})`)));
  return end;
}

async function* gathered(source: AsyncIterable<Buffer>): AsyncGenerator<Uint8Array> {
  let pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of source) {
    pieces.push(piece);
    bytes += piece.length;
    if (bytes < PIECE_BYTES) continue;
    yield joined(pieces, bytes);
    pieces = [];
    bytes = 0;
  }
  if (bytes > 0) yield joined(pieces, bytes);
}

/** Joins pieces in memory that can be moved to the thread. */
function joined(pieces: readonly Buffer[], bytes: number): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(bytes);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

async function answerOf(
  thread: Worker,
  end: ThreadEnd,
  piece: Uint8Array | null,
): Promise<readonly Buffer[]> {
  if (end.reason !== null) throw end.reason;
  const { promise, resolve, reject } = Promise.withResolvers<readonly Uint8Array<ArrayBuffer>[]>();
  const ended = () => reject(end.reason);
  thread.once("message", resolve).once("exit", ended);
  try {
    thread.postMessage(piece, piece === null ? [] : [piece.buffer as ArrayBuffer]);
    return (await promise).map(({ buffer }) => Buffer.from(buffer));
  } finally {
    thread.off("message", resolve).off("exit", ended);
  }
}
