/**
 * Reads the lines of an ended batch of which the input of another one is made, each with its answer where that is needed. It
 * reads in the order of the input and in constant memory: the files are read side by side. Only the error file says which
 * lines failed: each line of an ended batch has its row there or in the output file.
 */
import type { StoredFile } from "../../batch/batch.ts";
import type { SourceFiles } from "../../batch/derivation.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import type { SourceLines } from "../../contract/batch-extension.ts";
import { linesOfFile } from "../chunks/chunk-input.ts";
import {
  MAX_GATHERED_ROW_BYTES,
  type PlacedLine,
  placedRows,
  wholeLine,
} from "../results/result-rows.ts";

export interface LinesOfSource {
  readonly lines: SourceLines;
  readonly files: SourceFiles<StoredFile>;
  /** Whether any line ran. When none did, all of them count as failed. */
  readonly hasResults: boolean;
  /** Whether the answers are wanted too. */
  readonly withAnswers: boolean;
}

/** A line of the source. */
export interface SourceLine {
  readonly bytes: Buffer;
  /** The row of its answer; null without one, or when none is wanted. */
  readonly row: Buffer | null;
}

/** Yields the chosen lines. Throws `NoLineNumbers` for results of an older version. */
export async function* linesOfSource(
  { lines, files, hasResults, withAnswers }: LinesOfSource,
  blobs: BlobReader,
): AsyncGenerator<SourceLine> {
  const failed = hasResults ? new RowsByLine(files.error, blobs) : null;
  const answers = withAnswers ? new RowsByLine(files.output, blobs) : null;
  try {
    for await (const { number, bytes } of linesOfFile(files.input, blobs)) {
      if (bytes === null) continue;
      if (lines !== "all") {
        const isFailed = failed === null || (await failed.at(number)) !== null;
        if (isFailed !== (lines === "failed")) continue;
      }
      const answer = answers === null ? null : await answers.at(number);
      yield { bytes, row: answer === null ? null : (await wholeLine(answer, blobs)).row };
    }
  } finally {
    await failed?.close();
    await answers?.close();
  }
}

/** The rows of a result file. They are asked for in the order of their lines. */
class RowsByLine {
  readonly #rows: AsyncGenerator<PlacedLine>;
  #number = 0;
  #line: PlacedLine | null = null;

  constructor(file: StoredFile | null, blobs: BlobReader) {
    const query = { blobs, afterLine: 0, maxRowBytes: MAX_GATHERED_ROW_BYTES };
    this.#rows = placedRows(file, query);
  }

  async at(number: number): Promise<PlacedLine | null> {
    while (this.#number < number) {
      const next = await this.#rows.next();
      this.#number = next.done === true ? Number.POSITIVE_INFINITY : next.value.number;
      this.#line = next.done === true ? null : next.value;
    }
    return this.#number === number ? this.#line : null;
  }

  async close(): Promise<void> {
    await this.#rows.return(undefined);
  }
}
