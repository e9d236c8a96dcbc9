/**
 * Reads the rows of a result file with the numbers of their lines, in constant memory. The id of a row begins with the
 * number of its line.
 */
import type { StoredFile } from "../batch/batch.ts";
import { type FinishedLine, NoLineNumbers } from "../batch/finished-line.ts";
import { lineNumberOf } from "../batch/outcome.ts";
import { LineSplitter } from "../batch/split.ts";
import type { Blobs } from "../blobs/blobs.ts";
import { timeForMore } from "../resources/time-slice.ts";

/** No row is longer than a journal record. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;
const NEWLINE = Buffer.from("\n");

/** Yields the rows of lines after `afterLine`. Throws {@link NoLineNumbers} for a file of an older version. */
export async function* resultRows(
  file: StoredFile | null,
  { blobs, afterLine }: { readonly blobs: Blobs; readonly afterLine: number },
): AsyncGenerator<FinishedLine> {
  if (file === null) return;
  const splitter = new LineSplitter(NO_LIMIT, { start: 0, firstLine: 1 });
  let last = 0;
  for await (const piece of blobs.read(file.blobKey) as AsyncIterable<Buffer>) {
    for (const { bytes } of splitter.push(piece)) {
      if (bytes === null) continue;
      const number = lineNumberOf(bytes);
      // Where an input was damaged, two lines may have the same number.
      if (number === null || number < last) throw new NoLineNumbers();
      last = number;
      if (number > afterLine) yield { number, row: Buffer.concat([bytes, NEWLINE]) };
    }
    const pause = timeForMore();
    if (pause !== null) await pause;
  }
}

/** Merges two streams in the order of their line numbers. */
export async function* inLineOrder<A extends { number: number }, B extends { number: number }>(
  one: AsyncGenerator<A>,
  other: AsyncGenerator<B>,
): AsyncGenerator<A | B> {
  try {
    let [first, second] = await Promise.all([one.next(), other.next()]);
    while (first.done !== true || second.done !== true) {
      const takesFirst =
        second.done === true || (first.done !== true && first.value.number <= second.value.number);
      if (takesFirst && first.done !== true) {
        yield first.value;
        first = await one.next();
      } else if (second.done !== true) {
        yield second.value;
        second = await other.next();
      }
    }
  } finally {
    await Promise.all([one.return(undefined), other.return(undefined)]);
  }
}
