/**
 * The rows of lines that were not sent because their bodies came before. Each gets the row of the first line with its body,
 * under its own number and custom id.
 *
 * Which lines these are is not stored: they are the lines of the input (`repeated-lines.ts`) that the merge has no rows for.
 * Rows of the merge that may be wanted again are remembered (`remembered-rows.ts`), at most as many as the bodies that are
 * compared.
 *
 * There are as many rows as the validation has counted duplicates, even when the input is damaged since. A line whose body is
 * another one by now gets a row that says so. Behind bytes that are no line, the numbers of lines mean nothing; the duplicates
 * that are left then get rows without a custom id.
 *
 * One request would otherwise fill any disk: 50,000 lines with one body share an answer that may have 64 MB. So the rows have a
 * limit of bytes, and a duplicate whose row exceeds it gets one that says so.
 */
import type { Batch, StopReason } from "../../batch/batch.ts";
import { EqualBodies } from "../../batch/equal-bodies.ts";
import { type NoAnswer, noAnswerLine, rowFor } from "../../batch/outcome.ts";
import { DUPLICATES_TOO_LARGE, unreadableLine } from "../steps/failure.ts";
import type { Row } from "./chunk-records.ts";
import { leftRow } from "./merge.ts";
import { LOST, RememberedRows } from "./remembered-rows.ts";
import { type RepeatedLine, RepeatedLines, type RepeatedLinesDeps } from "./repeated-lines.ts";

/** Rows that are read from the journal at the same time. */
const MAX_READS = 16;

export interface DuplicateRowsDeps extends RepeatedLinesDeps {
  /** Returns the most that the rows of duplicates of a batch may have together. */
  readonly maxDuplicateBytes: () => number;
}

/** Puts the rows of duplicates between the rows of a merge, in the order of the lines. */
export async function* withDuplicates(
  rows: AsyncGenerator<readonly Row[]>,
  batch: Batch,
  deps: DuplicateRowsDeps,
): AsyncGenerator<readonly Row[]> {
  if ((batch.deduplicated?.lineCount ?? 0) === 0) {
    yield* rows;
    return;
  }
  const duplicates = new DuplicateRows(batch, deps);
  try {
    for await (const group of rows) {
      let merged: Row[] = [];
      for (const row of group) {
        if (!duplicates.isNext(row.lineNumber)) {
          yield merged;
          merged = [];
          yield* duplicates.before(row.lineNumber);
        }
        duplicates.pass(row);
        merged.push(row);
      }
      yield merged;
    }
    yield* duplicates.before(Number.POSITIVE_INFINITY);
  } finally {
    await duplicates.close();
  }
}

class DuplicateRows {
  readonly #stopReason: StopReason | null;
  readonly #bodies = new EqualBodies();
  readonly #lines: RepeatedLines;
  readonly #rows: RememberedRows;
  /** The duplicates that have no row yet. */
  #leftCount: number;
  /** The bytes that the rows of further duplicates may have. */
  #leftBytes: number;
  /** The number of the last line that has its row. */
  #last = 0;

  constructor(batch: Batch, deps: DuplicateRowsDeps) {
    this.#leftBytes = deps.maxDuplicateBytes();
    this.#stopReason = batch.stopReason;
    this.#leftCount = batch.deduplicated?.lineCount ?? 0;
    this.#lines = new RepeatedLines(batch, this.#bodies, deps);
    this.#rows = new RememberedRows(deps.blobs);
  }

  /** Whether no duplicate comes before the row of this line, as far as that is known. */
  isNext(number: number): boolean {
    return this.#leftCount === 0 || this.#lines.head?.number === number;
  }

  /** Notes a row of the merge. All lines up to it were read before. */
  pass(row: Row): void {
    this.#last = row.lineNumber;
    if (this.#lines.head?.number === row.lineNumber) this.#lines.take();
    if (this.#leftCount > 0 && this.#bodies.mayRepeat(row.lineNumber)) this.#rows.add(row);
  }

  /** Yields the rows of the duplicates before a line, in small groups. */
  async *before(number: number): AsyncGenerator<readonly Row[]> {
    for (;;) {
      const found: RepeatedLine[] = [];
      while (found.length < MAX_READS) {
        const line = this.#leftCount === 0 ? null : await this.#nextBefore(number);
        if (line === null) break;
        this.#leftCount--;
        this.#last = line.number;
        found.push(line);
      }
      if (found.length === 0) return;
      yield await Promise.all(found.map((line) => this.#rowOf(line)));
    }
  }

  /** Finds the next line without a row of the merge. Where none can be read any more, each missing number is one. */
  async #nextBefore(number: number): Promise<RepeatedLine | null> {
    await this.#lines.fill();
    const { head } = this.#lines;
    if (head === null) {
      const missing = this.#last + 1;
      return missing < number ? { number: missing, customId: null, first: null } : null;
    }
    if (head.number >= number) return null;
    this.#lines.take();
    return head;
  }

  async #rowOf({ number: lineNumber, customId, first }: RepeatedLine): Promise<Row> {
    const line = { lineNumber, customId };
    const failed = (reason: NoAnswer): Row => {
      const bytes = noAnswerLine(line, reason);
      return { lineNumber, kind: "failed", bytes, isDuplicate: true };
    };
    if (customId === null || first === null) return failed(unreadableLine(lineNumber));
    const found = await this.#rows.find(first);
    if (found !== null && found !== LOST) {
      const bytes = rowFor(line, found.bytes);
      const { rest } = found;
      const rowBytes = bytes.length + (rest === undefined ? 0 : rest.end - rest.start);
      if (rowBytes > this.#leftBytes) return failed(DUPLICATES_TOO_LARGE);
      this.#leftBytes -= rowBytes;
      return { ...found, lineNumber, bytes, isDuplicate: true };
    }
    const reason = found === LOST ? null : this.#stopReason;
    return { ...leftRow({ number: lineNumber, customId }, reason), isDuplicate: true };
  }

  async close(): Promise<void> {
    await this.#lines.close();
  }
}
