/**
 * Lets clients read the finished lines of a batch while it runs. Each reader holds some memory and may wait for long, so
 * the number of readers is bounded, and all of them end when the server closes.
 */
import type { Batch, ScopedId } from "../batch/batch.ts";
import {
  type FinishedLine,
  type FinishedLinesQuery,
  NoLineNumbers,
} from "../batch/finished-line.ts";
import { isFinal } from "../batch/status.ts";
import type { Clock } from "../clock.ts";
import { sleep } from "../clock.ts";
import { PublicError } from "../errors.ts";
import type { Batches } from "./batches.ts";
import { Places } from "./places.ts";

/** The most readers of this process, and of a project: each may hold several megabytes. */
const MAX_READERS = 32;
const MAX_READERS_OF_PROJECT = 8;
/** The time after which a waiting reader looks for new lines. */
const LOOK_EVERY_MS = 500;

export interface ResultsQuery extends FinishedLinesQuery {
  /** The most lines to read; null for all. */
  readonly limit: number | null;
  /** The time to wait for a first line. */
  readonly waitMs: number;
}

export interface ResultsDeps {
  /** Yields the lines that have ended so far, in the order of the input. */
  readonly finishedLines: (batch: Batch, query: FinishedLinesQuery) => AsyncGenerator<FinishedLine>;
  readonly batches: Pick<Batches, "find">;
  readonly clock: Clock;
}

export interface ResultsReading extends AsyncDisposable {
  /** The batch as it was when its lines were read. */
  readonly batch: Batch;
  readonly rows: AsyncGenerator<Buffer>;
}

export class Results {
  readonly #deps: ResultsDeps;
  /** The places of readers, of which other long reading takes some too. */
  readonly places = new Places({
    total: MAX_READERS,
    ofProject: MAX_READERS_OF_PROJECT,
    message: "Too many clients are reading the lines of batches. Please try again.",
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
    const place = this.places.take(asked.project);
    try {
      const { batch, lines, begin } = await this.#firstLines(first, query, disconnected);
      return {
        batch,
        rows: rowsOf(begin, lines, query.limit),
        async [Symbol.asyncDispose]() {
          place[Symbol.dispose]();
          await lines.return(undefined);
        },
      };
    } catch (error) {
      place[Symbol.dispose]();
      throw publicError(error);
    }
  }

  async #firstLines(first: Batch, query: ResultsQuery, disconnected: AbortSignal) {
    const { batches, clock, finishedLines } = this.#deps;
    const stop = AbortSignal.any([disconnected, this.#closing.signal]);
    const endsAtMs = clock.elapsedMs() + query.waitMs;
    for (let batch = first; ; ) {
      const lines = finishedLines(batch, query);
      const begin = await lines.next();
      const waitMs = endsAtMs - clock.elapsedMs();
      const isOver = isFinal(batch.status) || waitMs <= 0 || stop.aborted;
      if (begin.done !== true) return { batch, lines, begin: [begin.value] };
      if (isOver) return { batch, lines, begin: [] };
      batch = await this.#changed(batch, { waitMs, stop, find: () => batches.find(batch) });
    }
  }

  /** Resolves to the batch once more of its lines have ended, or the wait is over. */
  async #changed(
    batch: Batch,
    wait: { waitMs: number; stop: AbortSignal; find: () => Promise<Batch> },
  ): Promise<Batch> {
    const { clock } = this.#deps;
    const endsAtMs = clock.elapsedMs() + wait.waitMs;
    for (;;) {
      const leftMs = endsAtMs - clock.elapsedMs();
      await sleep(clock, Math.min(LOOK_EVERY_MS, leftMs), wait.stop);
      const found = await wait.find();
      const { completed, failed } = batch.counts;
      const isSame =
        found.status === batch.status &&
        found.counts.completed === completed &&
        found.counts.failed === failed;
      if (!isSame || wait.stop.aborted || clock.elapsedMs() >= endsAtMs) return found;
    }
  }
}

async function* rowsOf(
  begin: readonly FinishedLine[],
  lines: AsyncGenerator<FinishedLine>,
  limit: number | null,
): AsyncGenerator<Buffer> {
  let count = 0;
  for (const { number, row } of begin) {
    yield numbered(row, number);
    if (++count === limit) return;
  }
  for await (const { number, row } of lines) {
    yield numbered(row, number);
    if (++count === limit) return;
  }
}

/** Adds the number of the line to a row, as its last field. */
function numbered(row: Buffer, number: number): Buffer {
  const body = row.subarray(0, row.lastIndexOf("}"));
  return Buffer.concat([body, Buffer.from(`,"x_batchd":{"line":${number}}}\n`)]);
}

/** Turns what a reader of results meets into an answer for the client. */
export function publicError(error: unknown): unknown {
  if (!(error instanceof NoLineNumbers)) return error;
  return new PublicError(
    "conflict",
    "The result file of this batch was written by an older version, which did not number its lines. Download the file instead.",
  );
}
