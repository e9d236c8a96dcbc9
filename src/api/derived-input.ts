/**
 * Makes the input of a batch out of lines of another one. The lines are copied byte for byte, in their order, in constant
 * memory. Only the error file has to be read beside the input: each line of an ended batch has its row there or in the
 * output file.
 */

import type { StoredFile } from "../batch/batch.ts";
import { NoLineNumbers } from "../batch/finished-line.ts";
import { lineNumberOf } from "../batch/outcome.ts";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { SourceLines } from "../contract/batch.ts";
import { timeForMore } from "../resources/time-slice.ts";

/** The lines of a source were checked when it was validated, and its rows when they were written. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;
/** Lines gather to this size before they are passed on. */
const PIECE_BYTES = 256 * 1024;
const NEWLINE = Buffer.from("\n");

export interface LinesOfSource {
  readonly lines: SourceLines;
  /** The file that numbers the lines. */
  readonly input: StoredFile;
  /** The rows of the lines without an answer; null when all have one. */
  readonly error: StoredFile | null;
  /** Whether any line ran. When none did, all of them count as failed. */
  readonly hasResults: boolean;
}

/** Yields the chosen lines in pieces. Yields nothing when the source has no such lines. */
export async function* linesOfSource(
  { lines, input, error, hasResults }: LinesOfSource,
  blobs: Blobs,
): AsyncGenerator<Buffer> {
  const failed = new FailedLines(hasResults ? numbersIn(error, blobs) : null);
  let gathered: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const line of linesIn(input, blobs)) {
      if (line.bytes === null) continue;
      if (lines !== "all" && (await failed.has(line.number)) !== (lines === "failed")) continue;
      gathered.push(line.bytes, NEWLINE);
      bytes += line.bytes.length + 1;
      if (bytes < PIECE_BYTES) continue;
      yield Buffer.concat(gathered);
      gathered = [];
      bytes = 0;
    }
    if (bytes > 0) yield Buffer.concat(gathered);
  } finally {
    await failed.close();
  }
}

async function* linesIn({ blobKey }: StoredFile, blobs: Blobs): AsyncGenerator<SplitLine> {
  const splitter = new LineSplitter(NO_LIMIT, { start: 0, firstLine: 1 });
  for await (const piece of blobs.read(blobKey) as AsyncIterable<Buffer>) {
    for (const line of splitter.push(piece)) yield line;
    const pause = timeForMore();
    if (pause !== null) await pause;
  }
  yield* splitter.end();
}

async function* numbersIn(file: StoredFile | null, blobs: Blobs): AsyncGenerator<number> {
  if (file === null) return;
  let last = 0;
  for await (const { bytes } of linesIn(file, blobs)) {
    const number = bytes === null ? null : lineNumberOf(bytes);
    if (number === null || number < last) throw new NoLineNumbers();
    last = number;
    yield number;
  }
}

/** Tells the failed lines from the others. The lines are asked for in order. */
class FailedLines {
  /** The numbers in order; null when all lines have failed. */
  readonly #numbers: AsyncGenerator<number> | null;
  #next = 0;

  constructor(numbers: AsyncGenerator<number> | null) {
    this.#numbers = numbers;
  }

  async has(number: number): Promise<boolean> {
    if (this.#numbers === null) return true;
    while (this.#next < number) {
      const next = await this.#numbers.next();
      this.#next = next.done === true ? Number.POSITIVE_INFINITY : next.value;
    }
    return this.#next === number;
  }

  async close(): Promise<void> {
    await this.#numbers?.return(undefined);
  }
}
