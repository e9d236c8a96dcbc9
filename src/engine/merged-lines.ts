/**
 * The lines of the source of a merged batch: a batch that runs some lines of another one again, and whose result files have
 * all lines of it. The lines that run again keep the numbers that they have in the source. The others keep their rows, so
 * the two only have to be merged by number.
 */
import type { Batch } from "../batch/batch.ts";
import type { FinishedLine, ResultKind } from "../batch/finished-line.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { SourceLines } from "../contract/batch-extension.ts";
import type { SourceStore } from "../store/sources.ts";
import { inLineOrder, resultRows } from "./result-rows.ts";

interface MergedLinesDeps {
  readonly store: Pick<SourceStore, "findMergedResults">;
  readonly blobs: Blobs;
}

/** The kind of the rows that a merged batch takes over from its source; null when all lines run again. */
const KEPT: Readonly<Record<SourceLines, ResultKind | null>> = {
  failed: "output",
  succeeded: "error",
  all: null,
};

/**
 * Returns the kind of the rows that the batch takes over from its source; null when it takes none. A batch that never started
 * has no rows for its own lines, so it takes none over: its results would look whole and lack those.
 */
export const keptKind = ({ source, inProgressAtMs }: Batch): ResultKind | null =>
  source === null || source.merge === null || inProgressAtMs === null ? null : KEPT[source.lines];

/** Yields the rows that the batch takes over from its source, in order. */
export async function* keptRows(
  batch: Batch,
  afterLine: number,
  { store, blobs }: MergedLinesDeps,
): AsyncGenerator<FinishedLine> {
  const kind = keptKind(batch);
  if (kind === null) return;
  const results = await store.findMergedResults(batch);
  yield* resultRows(results[kind], { blobs, afterLine });
}

/** Yields the numbers of the lines that run again, as the source has them, in the order of the input. */
export async function* numbersInSource(
  batch: Batch,
  { store, blobs }: MergedLinesDeps,
): AsyncGenerator<number> {
  const { output, error } = await store.findMergedResults(batch);
  const lines = batch.source?.lines ?? "all";
  const rowsOf = (kind: ResultKind) =>
    resultRows(KEPT[lines] === kind ? null : { output, error }[kind], { blobs, afterLine: 0 });
  for await (const { number } of inLineOrder(rowsOf("output"), rowsOf("error"))) yield number;
}

/** The rows that a merged batch takes over, read in step with its own. */
export class KeptRows {
  readonly kind: ResultKind;
  readonly #rows: AsyncGenerator<FinishedLine>;
  #next: FinishedLine | null = null;

  private constructor(kind: ResultKind, rows: AsyncGenerator<FinishedLine>) {
    this.kind = kind;
    this.#rows = rows;
  }

  /** Returns null for a batch that takes no rows over. */
  static of(batch: Batch, deps: MergedLinesDeps): KeptRows | null {
    const kind = keptKind(batch);
    return kind === null ? null : new KeptRows(kind, keptRows(batch, 0, deps));
  }

  /** Yields the next rows of lines before `number`. */
  async *before(number: number): AsyncGenerator<Buffer> {
    for (;;) {
      if (this.#next === null) {
        const next = await this.#rows.next();
        if (next.done === true) return;
        this.#next = next.value;
      }
      if (this.#next.number >= number) return;
      const { row } = this.#next;
      this.#next = null;
      yield row;
    }
  }

  async close(): Promise<void> {
    await this.#rows.return(undefined);
  }
}
