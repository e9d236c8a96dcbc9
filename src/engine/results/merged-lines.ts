/**
 * The lines of the source of a merged batch: a batch that runs some lines of another one again, and whose result files have
 * all lines of it. The lines that run again keep the numbers that they have in the source. The others keep their rows, so
 * the two only have to be merged by number.
 */
import type { Batch } from "../../batch/batch.ts";
import type { FinishedLine, ResultKind } from "../../batch/finished-line.ts";
import { noAnswerLine } from "../../batch/outcome.ts";
import { isFinal } from "../../batch/status.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import type { SourceLines } from "../../contract/batch-extension.ts";
import type { Store } from "../../store/store.ts";
import type { SplitLine } from "../../text/split.ts";
import { customIdOf, linesOfFile } from "../chunks/chunk-input.ts";
import { isLost } from "../journal/segment.ts";
import { SOURCE_ANSWER_LOST } from "../steps/failure.ts";
import { JournalOver } from "./journal-windows.ts";
import {
  inLineOrder,
  MAX_GATHERED_ROW_BYTES,
  type PlacedLine,
  placedRows,
  wholeLine,
} from "./result-rows.ts";

interface MergedLinesDeps {
  readonly store: Pick<Store, "findMergedResults">;
  readonly blobs: BlobReader;
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
async function* keptRows(
  batch: Batch,
  query: KeptRowsQuery,
  { store, blobs }: MergedLinesDeps,
): AsyncGenerator<PlacedLine> {
  const kind = keptKind(batch);
  if (kind === null) return;
  const results = await store.findMergedResults(batch);
  yield* placedRows(results[kind], { ...query, blobs });
}

interface KeptRowsQuery {
  readonly afterLine: number;
  /** Longer rows come as their places. */
  readonly maxRowBytes: number;
}

/**
 * Yields the rows as {@link keptRows} does, up to the first that cannot be read any more. Throws {@link JournalOver} where the
 * batch has ended meanwhile, because the files of its source may go then, and its own files have the rows.
 */
export async function* readableKeptRows(
  batch: Batch,
  query: KeptRowsQuery,
  deps: MergedLinesDeps & { readonly store: Pick<Store, "findBatch"> },
): AsyncGenerator<PlacedLine> {
  try {
    yield* keptRows(batch, query, deps);
  } catch (error) {
    if (!isLost(error)) throw error;
    const found = await deps.store.findBatch(batch);
    if (found === null || isFinal(found.status)) throw new JournalOver();
  }
}

/** Yields the numbers of the lines that run again, as the source has them, in the order of the input. */
export async function* numbersInSource(
  batch: Batch,
  { store, blobs }: MergedLinesDeps,
): AsyncGenerator<number> {
  const { output, error } = await store.findMergedResults(batch);
  const lines = batch.source?.lines ?? "all";
  // Only the numbers are wanted, so no long row is read for them.
  const query = { blobs, afterLine: 0, maxRowBytes: MAX_GATHERED_ROW_BYTES };
  const rowsOf = (kind: ResultKind) =>
    placedRows(KEPT[lines] === kind ? null : { output, error }[kind], query);
  for await (const { number } of inLineOrder(rowsOf("output"), rowsOf("error"))) yield number;
}

export interface KeptRowsDeps extends MergedLinesDeps {
  readonly store: Pick<Store, "findFile" | "findMergedResults">;
  /** Whether an error that might pass counts as damage. */
  readonly isLastTry: boolean;
  readonly onDamaged: (damage: { readonly problem: string }) => void;
}

interface KeptRow extends FinishedLine {
  /** The file of the row. A line whose answer is lost has its row in the error file. */
  readonly kind: ResultKind;
  readonly isLost: boolean;
}

/**
 * Yields a row for every line that does not run again. Where the results of the source cannot be read any more, the numbered
 * input says which lines are left. There the lines that run again are among them.
 */
async function* rowsOrLosses(
  batch: Batch,
  kind: ResultKind,
  deps: KeptRowsDeps,
): AsyncGenerator<KeptRow> {
  let last = 0;
  try {
    const query = { afterLine: 0, maxRowBytes: MAX_GATHERED_ROW_BYTES };
    for await (const line of keptRows(batch, query, deps)) {
      last = line.number;
      yield { ...(await wholeLine(line, deps.blobs)), kind, isLost: false };
    }
    return;
  } catch (error) {
    noteDamage(error, deps);
  }
  try {
    for await (const { number: lineNumber, bytes } of numberedLines(batch, deps)) {
      if (lineNumber <= last) continue;
      const row = noAnswerLine(
        { lineNumber, customId: await customIdOf(bytes) },
        SOURCE_ANSWER_LOST,
      );
      yield { number: lineNumber, kind: "error", row, isLost: true };
    }
  } catch (error) {
    noteDamage(error, deps);
  }
}

/** Throws an error that may pass. */
function noteDamage(error: unknown, { isLastTry, onDamaged }: KeptRowsDeps): void {
  if (!isLost(error) && !isLastTry) throw error;
  onDamaged({ problem: (error as Error).message });
}

/** Yields the lines of the input that numbers the lines of a merged batch; none once it was deleted. */
async function* numberedLines(
  { project, source }: Batch,
  { store, blobs }: KeptRowsDeps,
): AsyncGenerator<SplitLine> {
  const id = source?.merge?.inputFileId ?? null;
  const file = id === null ? null : await store.findFile({ project, id });
  if (file !== null) yield* linesOfFile(file, blobs);
}

/**
 * The numbers of the lines that run again, read in step with them. Where the results of the source cannot be read any more, each
 * line is looked for in the numbered input.
 */
export class NumbersInSource {
  readonly #batch: Batch;
  readonly #deps: KeptRowsDeps;
  readonly #numbers: AsyncGenerator<number>;
  /** It is null while the results can be read. */
  #lines: AsyncGenerator<SplitLine> | null = null;
  #last = 0;

  constructor(batch: Batch, deps: KeptRowsDeps) {
    this.#batch = batch;
    this.#deps = deps;
    this.#numbers = numbersInSource(batch, deps);
  }

  /** Resolves to the number of the next line; null when it cannot be known. */
  async next(line: Buffer): Promise<number | null> {
    try {
      const next = this.#lines === null ? await this.#numbers.next() : null;
      if (next?.done === true) return null;
      this.#last = next === null ? this.#last : next.value;
      if (next !== null) return next.value;
    } catch (error) {
      noteDamage(error, this.#deps);
    }
    this.#lines ??= numberedLines(this.#batch, this.#deps);
    for (;;) {
      const next = await this.#lines.next();
      if (next.done === true) return null;
      const { number, bytes } = next.value;
      if (number > this.#last && bytes?.equals(line) === true) return number;
    }
  }

  async close(): Promise<void> {
    await this.#numbers.return(undefined);
    await this.#lines?.return(undefined);
  }
}

/** The rows of the lines that do not run again, read in step with those of the others. */
export class KeptRows {
  readonly #rows: AsyncGenerator<KeptRow>;
  #next: KeptRow | null = null;

  private constructor(rows: AsyncGenerator<KeptRow>) {
    this.#rows = rows;
  }

  /** Returns null for a batch that takes no rows over. */
  static of(batch: Batch, deps: KeptRowsDeps): KeptRows | null {
    const kind = keptKind(batch);
    return kind === null ? null : new KeptRows(rowsOrLosses(batch, kind, deps));
  }

  /** Yields the next rows of lines before `number`, which is a line that runs again. */
  async *before(number: number): AsyncGenerator<KeptRow> {
    for (;;) {
      if (this.#next === null) {
        const next = await this.#rows.next();
        if (next.done === true) return;
        this.#next = next.value;
      }
      if (this.#next.number > number) return;
      const kept = this.#next;
      this.#next = null;
      if (kept.number < number || !kept.isLost) yield kept;
    }
  }

  async close(): Promise<void> {
    await this.#rows.return(undefined);
  }
}
