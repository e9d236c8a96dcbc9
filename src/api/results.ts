/**
 * Lets clients read the finished lines of a batch while it runs. Each reader holds some memory and may wait for long, so
 * the number of readers is bounded, and all of them end when the server closes.
 */
import type { Batch, ScopedId } from "../batch/batch.ts";
import {
  type FinishedLinesQuery,
  NoLineNumbers,
  type PassedLine,
  ResultFileDeleted,
} from "../batch/finished-line.ts";
import { isFinal } from "../batch/status.ts";
import type { Clock } from "../clock.ts";
import { sleep } from "../clock.ts";
import type { BatchStatus } from "../contract/batch.ts";
import { PublicError } from "../errors.ts";
import type { Batches } from "./batches.ts";
import { ClientLimit } from "./client-limit.ts";

/** The most readers of this process, and of a project: each may hold several megabytes. */
const MAX_READERS = 32;
const MAX_READERS_OF_PROJECT = 8;
/** The time after which a waiting reader looks for new lines. */
const LOOK_EVERY_MS = 500;
/** The time after which a follower hears that nothing has happened: proxies close a silent connection after a minute. */
const SILENCE_MS = 15_000;

export interface ResultsQuery extends FinishedLinesQuery {
  /** The most lines to read; null for all. */
  readonly limit: number | null;
  /** The time to wait for a first line. */
  readonly waitMs: number;
}

export interface ResultsDeps {
  /** Yields the lines that have ended so far, in the order of the input. */
  readonly passedLines: (batch: Batch, query: FinishedLinesQuery) => AsyncGenerator<PassedLine>;
  readonly batches: Pick<Batches, "find">;
  readonly clock: Clock;
}

export interface ResultsReading extends AsyncDisposable {
  /** The batch as it was when its lines were read. */
  readonly batch: Batch;
  /** The rows, of which a long one comes in pieces. */
  readonly rows: AsyncGenerator<Buffer>;
}

/** What a follower is sent. */
export type ResultsEvent =
  | { readonly kind: "line"; readonly number: number; readonly row: AsyncIterable<Buffer> }
  /** Nothing has happened for a while. */
  | { readonly kind: "silence" }
  /** The batch is final, and all its lines were sent; the status is null when the batch or its result file was deleted. */
  | { readonly kind: "end"; readonly status: BatchStatus | null };

interface Wait<Found> {
  readonly waitMs: number;
  readonly stop: AbortSignal;
  readonly find: () => Promise<Found>;
}

export interface ResultsFollowing extends Disposable {
  readonly batch: Batch;
  readonly events: AsyncGenerator<ResultsEvent>;
}

export class Results {
  readonly #deps: ResultsDeps;
  /** Other long reading counts here too. */
  readonly readers = new ClientLimit({
    total: MAX_READERS,
    ofProject: MAX_READERS_OF_PROJECT,
    message:
      "Too many clients read lines of batches, or wait for a copy of an input. Please try again.",
  });
  readonly #closing = new AbortController();

  constructor(deps: ResultsDeps) {
    this.#deps = deps;
  }

  /** Ends the waits of all readers. */
  close(): void {
    this.#closing.abort();
  }

  /**
   * Opens a reader. Waits for a first line if it is asked to, and until `disconnected` aborts. The caller must
   * dispose of the reader.
   */
  async open(
    asked: ScopedId<"batch">,
    query: ResultsQuery,
    disconnected: AbortSignal,
  ): Promise<ResultsReading> {
    const first = await this.#deps.batches.find(asked);
    const reader = this.readers.acquire(asked.project);
    try {
      const { batch, lines, begin } = await this.#firstLines(first, query, disconnected);
      return {
        batch,
        rows: rowsOf(begin, lines, query.limit),
        async [Symbol.asyncDispose]() {
          reader[Symbol.dispose]();
          await lines.return(undefined);
        },
      };
    } catch (error) {
      reader[Symbol.dispose]();
      throw publicError(error);
    }
  }

  /**
   * Opens a reader that follows a batch to its end. It sees the lines in the order of the input, each once, and no line
   * before all earlier ones have ended: so it can go on behind any of them. The caller must dispose of it.
   */
  async follow(
    asked: ScopedId<"batch">,
    query: FinishedLinesQuery,
    disconnected: AbortSignal,
  ): Promise<ResultsFollowing> {
    const batch = await this.#deps.batches.find(asked);
    const reader = this.readers.acquire(asked.project);
    const stop = AbortSignal.any([disconnected, this.#closing.signal]);
    return {
      batch,
      events: this.#events(batch, query, stop),
      [Symbol.dispose]: () => reader[Symbol.dispose](),
    };
  }

  async *#events(
    first: Batch,
    query: FinishedLinesQuery,
    stop: AbortSignal,
  ): AsyncGenerator<ResultsEvent> {
    try {
      yield* this.#eventsToEnd(first, query, stop);
    } catch (error) {
      if (!(error instanceof ResultFileDeleted)) throw error;
      yield { kind: "end", status: null };
    }
  }

  async *#eventsToEnd(
    first: Batch,
    query: FinishedLinesQuery,
    stop: AbortSignal,
  ): AsyncGenerator<ResultsEvent> {
    const { batches, passedLines } = this.#deps;
    let last = query.afterLine;
    // A batch may have millions of lines between two of the wanted kind, and each pass would read them all again.
    let readTo = last;
    const find = () => batches.find(first).catch(nullIfDeleted);
    for (let batch: Batch | null = first; !stop.aborted; ) {
      if (batch === null) {
        yield { kind: "end", status: null };
        return;
      }
      for await (const line of passedLines(batch, {
        ...query,
        // A line whose answer was lost may have run again since, so the file is read behind the last line that was sent.
        afterLine: isFinal(batch.status) ? last : Math.max(last, readTo),
        endsAtGap: true,
        onGap: (line) => {
          readTo = line - 1;
        },
      })) {
        last = line.number;
        yield { kind: "line", number: last, row: withNumber(line) };
        if (stop.aborted) return;
      }
      if (isFinal(batch.status)) {
        yield { kind: "end", status: batch.status };
        return;
      }
      const before: Batch = batch;
      batch = await this.#changed(before, { waitMs: SILENCE_MS, stop, find });
      if (batch === before && !stop.aborted) yield { kind: "silence" };
    }
  }

  async #firstLines(first: Batch, query: ResultsQuery, disconnected: AbortSignal) {
    const { batches, clock, passedLines } = this.#deps;
    const stop = AbortSignal.any([disconnected, this.#closing.signal]);
    const endsAtMs = clock.elapsedMs() + query.waitMs;
    for (let batch = first; ; ) {
      const lines = passedLines(batch, query);
      const begin = await lines.next();
      const waitMs = endsAtMs - clock.elapsedMs();
      const isOver = isFinal(batch.status) || waitMs <= 0 || stop.aborted;
      if (begin.done !== true) return { batch, lines, begin: [begin.value] };
      if (isOver) return { batch, lines, begin: [] };
      batch = await this.#changed(batch, { waitMs, stop, find: () => batches.find(batch) });
    }
  }

  /**
   * Resolves to what `find` finds once more lines of the batch have ended or it is gone, and to the same object when the wait
   * is over before.
   */
  async #changed<Found extends Batch | null>(batch: Batch, wait: Wait<Found>) {
    const { clock } = this.#deps;
    const endsAtMs = clock.elapsedMs() + wait.waitMs;
    while (!wait.stop.aborted && clock.elapsedMs() < endsAtMs) {
      await sleep(clock, Math.min(LOOK_EVERY_MS, endsAtMs - clock.elapsedMs()), wait.stop);
      const found = await wait.find();
      if (found === null || !isSameProgress(found, batch)) return found;
    }
    return batch;
  }
}

const isSameProgress = (one: Batch, other: Batch): boolean =>
  one.status === other.status &&
  one.counts.completed === other.counts.completed &&
  one.counts.failed === other.counts.failed;

function nullIfDeleted(error: unknown): null {
  if (error instanceof PublicError && error.error === "not_found") return null;
  throw error;
}

async function* rowsOf(
  begin: readonly PassedLine[],
  lines: AsyncGenerator<PassedLine>,
  limit: number | null,
): AsyncGenerator<Buffer> {
  let count = 0;
  for (const line of begin) {
    yield* withNumber(line);
    if (++count === limit) return;
  }
  for await (const line of lines) {
    yield* withNumber(line);
    if (++count === limit) return;
  }
}

/** Adds the number of the line to a row, as its last field. */
async function* withNumber({ number, row }: PassedLine): AsyncGenerator<Buffer> {
  const end = Buffer.from(`,"x_batchd":{"line":${number}}}\n`);
  if (Buffer.isBuffer(row)) {
    yield Buffer.concat([row.subarray(0, row.lastIndexOf("}")), end]);
    return;
  }
  yield* row;
  yield end;
}

/** Turns what a reader of results meets into an answer for the client. */
export function publicError(error: unknown): unknown {
  if (error instanceof ResultFileDeleted) {
    return new PublicError("conflict", "The result file of this batch was deleted.");
  }
  if (!(error instanceof NoLineNumbers)) return error;
  return new PublicError(
    "conflict",
    "The result file of this batch was written by an older version, which did not number its lines. Download the file instead.",
  );
}
