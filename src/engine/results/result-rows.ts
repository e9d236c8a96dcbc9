/**
 * Reads the rows of a result file with the numbers of their lines, in constant memory. The id of a row begins with the
 * number of its line.
 */
import type { StoredFile } from "../../batch/batch.ts";
import { type FinishedLine, NoLineNumbers } from "../../batch/finished-line.ts";
import { lineNumberOf } from "../../batch/outcome.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import { LineSplitter } from "../../text/split.ts";
import type { RowPlace } from "./chunk-records.ts";

export interface PlacedLine {
  readonly number: number;
  /** The row, newline included; for a row that is longer than asked for, its place without its last brace and newline. */
  readonly row: Buffer | RowPlace;
}

/**
 * A longer row that is wanted as a whole is read by its place, into memory of its length. While a row gathers from the pieces
 * of a file, all of it is copied now and then, and 60 MB take 50 ms.
 */
export const MAX_GATHERED_ROW_BYTES = 4 * 1024 * 1024;
export const ROW_END = Buffer.from("}\n");
/** The beginning of a row, with the number of its line. */
const ROW_HEAD_BYTES = 64;
const NEWLINE = Buffer.from("\n");

interface RowsQuery {
  readonly blobs: BlobReader;
  readonly afterLine: number;
  /** Longer rows come as their places. */
  readonly maxRowBytes: number;
}

/** Returns the length of the row, newline included. */
export const rowBytes = (row: PlacedLine["row"]): number =>
  Buffer.isBuffer(row) ? row.length : row.end - row.start + ROW_END.length;

export async function wholeLine(
  { number, row }: PlacedLine,
  blobs: BlobReader,
): Promise<FinishedLine> {
  if (Buffer.isBuffer(row)) return { number, row };
  const { blobKey, start, end } = row;
  return { number, row: await blobs.readRange(blobKey, { start, end: end + ROW_END.length }) };
}

/** Yields the rows of lines after `afterLine`. Throws {@link NoLineNumbers} for a file of an older version. */
export async function* placedRows(
  file: StoredFile | null,
  { blobs, afterLine, maxRowBytes }: RowsQuery,
): AsyncGenerator<PlacedLine> {
  if (file === null) return;
  const { blobKey } = file;
  const start = await startOf(file, { blobs, afterLine });
  const splitter = new LineSplitter(maxRowBytes, { start, firstLine: 1 });
  let last = 0;
  const bytes = { start, end: file.bytes };
  for await (const piece of blobs.read(blobKey, bytes) as AsyncIterable<Buffer>) {
    for (const { bytes: row, start, end } of splitter.push(piece)) {
      const head = row ?? (await blobs.readRange(blobKey, { start, end: start + ROW_HEAD_BYTES }));
      const number = lineNumberOf(head);
      // Where an input was damaged, two lines may have the same number.
      if (number === null || number < last) throw new NoLineNumbers();
      last = number;
      if (number <= afterLine) continue;
      const place = { blobKey, start, end: end - ROW_END.length };
      yield { number, row: row === null ? place : Buffer.concat([row, NEWLINE]) };
    }
    const pause = timeForMore();
    if (pause !== null) await pause;
  }
}

/** A part of this size is read as a whole, which costs no more than another step of the search. */
const SEARCHED_BYTES = 1024 * 1024;
const WINDOW_BYTES = 64 * 1024;

/** Finds the start of a row shortly before the first one after `afterLine`, by halves. */
async function startOf(
  file: StoredFile,
  { blobs, afterLine }: { readonly blobs: BlobReader; readonly afterLine: number },
): Promise<number> {
  let [low, high] = [0, file.bytes];
  while (afterLine > 0 && high - low > SEARCHED_BYTES) {
    const middle = Math.floor((low + high) / 2);
    const row = await firstRowAfter(middle, file, blobs);
    if (row !== null && row.number <= afterLine && row.start < high) low = row.start;
    else high = middle;
  }
  return low;
}

/** Finds the first row that begins after `offset`; null at the end. */
async function firstRowAfter(
  offset: number,
  { blobKey, bytes }: StoredFile,
  blobs: BlobReader,
): Promise<{ readonly start: number; readonly number: number } | null> {
  for (let from = offset; from < bytes; from += WINDOW_BYTES) {
    const end = Math.min(from + WINDOW_BYTES, bytes);
    const newline = (await blobs.readRange(blobKey, { start: from, end })).indexOf(NEWLINE);
    if (newline === -1) continue;
    const start = from + newline + 1;
    if (start >= bytes) return null;
    const head = { start, end: Math.min(start + ROW_HEAD_BYTES, bytes) };
    const number = lineNumberOf(await blobs.readRange(blobKey, head));
    if (number === null) throw new NoLineNumbers();
    return { start, number };
  }
  return null;
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
