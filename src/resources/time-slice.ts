/**
 * Long work on the one thread that everything runs on. It may go on for 8 ms in a turn of the event loop, however many
 * requests and batches have such work: the others wait in a queue, and between two turns the loop does everything else.
 *
 * Whoever reads something that a client sent, or goes through many rows, does so in steps of some 64 KiB, or of a
 * millisecond at the most, and asks for time between two of them.
 */
import type { Reading } from "../batch/reading.ts";

const SLICE_MS = 8;
/** The most adversarial JSON takes 2 ms for as much. */
export const STEP_BYTES = 64 * 1024;
/** What is no longer is read in one go. */
const SHORT_BYTES = 2 * STEP_BYTES;

let endsAtMs = 0;
const queue: (() => void)[] = [];

/** Null while there is time left for long work in this turn of the event loop; else resolves when there is. */
export function timeForMore(): Promise<void> | null {
  if (performance.now() < endsAtMs) return null;
  const { promise, resolve } = Promise.withResolvers<void>();
  queue.push(resolve);
  if (queue.length === 1) setImmediate(startSlice);
  return promise;
}

/** For one of those who wait: two could not tell whose time is over. */
function startSlice(): void {
  endsAtMs = performance.now() + SLICE_MS;
  queue.shift()?.();
  if (queue.length > 0) setImmediate(startSlice);
}

/** Steps of some 100 µs, when each thing takes a microsecond. */
const GROUP_SIZE = 128;

/** Every one of `things`, in groups between which there is time for more. */
export async function* inSlices<T>(things: readonly T[]): AsyncGenerator<readonly T[]> {
  for (let from = 0; from < things.length; from += GROUP_SIZE) {
    const wait = timeForMore();
    if (wait !== null) await wait;
    yield things.slice(from, from + GROUP_SIZE);
  }
}

/** As `toSorted`, which takes 10 ms for 30,000 things, but in slices. */
export async function sortedInSlices<T>(
  things: readonly T[],
  compare: (a: T, b: T) => number,
): Promise<T[]> {
  let runs: T[][] = [];
  for await (const group of inSlices(things)) runs.push(group.toSorted(compare));
  while (runs.length > 1) {
    const longer: T[][] = [];
    for (let i = 0; i < runs.length; i += 2) {
      longer.push(await merged(runs[i] ?? [], runs[i + 1] ?? [], compare));
    }
    runs = longer;
  }
  return runs[0] ?? [];
}

/** Of equals those of `before` come first. */
async function merged<T>(
  before: readonly T[],
  after: readonly T[],
  compare: (a: T, b: T) => number,
): Promise<T[]> {
  const all: T[] = [];
  let next = 0;
  for await (const group of inSlices(before)) {
    for (const each of group) {
      for (; next < after.length; next++) {
        const other = after[next] as T;
        if (compare(each, other) <= 0) break;
        all.push(other);
      }
      all.push(each);
    }
  }
  for (; next < after.length; next++) all.push(after[next] as T);
  return all;
}

/** What copying, hashing or a checksum takes 3 ms for. */
export const PIECE_BYTES = 4 * 1024 * 1024;

/** A long run of bytes in parts that are each dealt with in one go. */
export function* piecesOf(bytes: Buffer): Generator<Buffer> {
  for (let from = 0; from < bytes.length; from += PIECE_BYTES) {
    yield bytes.subarray(from, from + PIECE_BYTES);
  }
}

/** Work that is made of many small things, counted in bytes. */
export class SlicedWork {
  #bytes = 0;

  /** So much was done. Null when there is time for more, else when there will be. */
  done(bytes: number): Promise<void> | null {
    this.#bytes += bytes;
    if (this.#bytes < STEP_BYTES) return null;
    this.#bytes = 0;
    return timeForMore();
  }
}

/** Whether it takes more than a step to read it. */
export const isLong = ({ length }: Buffer): boolean => length > SHORT_BYTES;

/** Reads a short text at once, and a long one in slices. */
export function read<Result>(reading: Reading<Result>, text: Buffer): Result | Promise<Result> {
  reading.begin(text);
  if (isLong(text)) return readOn(reading);
  while (!reading.advance(text.length));
  return reading.result();
}

async function readOn<Result>(reading: Reading<Result>): Promise<Result> {
  do await timeForMore();
  while (!reading.advance(STEP_BYTES));
  return reading.result();
}
