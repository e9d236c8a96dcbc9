/**
 * Divides long work into slices, so that no work blocks the event loop. All long work together may run for 8 ms in a
 * turn of the event loop. The rest waits, and the event loop does all other work between two turns. Projects take turns, so that
 * the lists of one, hundreds at a time, hold up neither a list of another one nor the results of a batch.
 *
 * A reader of client input, or of many rows, must work in steps of some 64 KiB or at most a millisecond. It asks for
 * time between two steps.
 */

import { systemClock } from "../clock.ts";
import type { Reading } from "../text/reading.ts";
import { isTurnLeft } from "./arrivals.ts";
import { ClientTurns } from "./client-turns.ts";

const SLICE_MS = 8;
/** The size of a step. The most adversarial JSON of this size takes 2 ms. */
export const STEP_BYTES = 64 * 1024;
/** A text up to this size is read without a pause. */
const SHORT_BYTES = 2 * STEP_BYTES;

let endsAtMs = 0;
const waiting = new ClientTurns<() => void>();
/** Whether the next slice is asked for. */
let isComing = false;

/** Returns null while there is time left in this turn of the event loop, else a promise of more time. */
export function timeForMore(): Promise<void> | null {
  if (systemClock.elapsedMs() < endsAtMs) return null;
  const { promise, resolve } = Promise.withResolvers<void>();
  waiting.add(resolve);
  askForSlice();
  return promise;
}

function askForSlice(): void {
  if (isComing) return;
  isComing = true;
  setImmediate(startSlice);
}

function startSlice(): void {
  isComing = false;
  endsAtMs = systemClock.elapsedMs() + (isTurnLeft() ? 0 : SLICE_MS);
  goOn();
}

/**
 * Lets what waits go on, one after the other while there is time. Most needs little of it, and with a turn for each, hundreds
 * would wait for as many turns.
 */
function goOn(): void {
  if (waiting.isEmpty) return;
  if (systemClock.elapsedMs() >= endsAtMs) {
    askForSlice();
    return;
  }
  waiting.next()?.[0]();
  // A tick comes after all microtasks, and this one after the ticks that they have asked for.
  queueMicrotask(() => process.nextTick(goOn));
}

/** The number of things in a step: some 100 µs when each takes a microsecond. */
const GROUP_SIZE = 128;

/** Yields `things` in groups, with a pause between them when the time is over. */
export async function* inSlices<T>(things: readonly T[]): AsyncGenerator<readonly T[]> {
  for (let from = 0; from < things.length; from += GROUP_SIZE) {
    const wait = timeForMore();
    if (wait !== null) await wait;
    yield things.slice(from, from + GROUP_SIZE);
  }
}

/** Sorts like `toSorted`, which takes 10 ms for 30,000 things, but in slices. */
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

/** Merges two sorted runs. Equal things keep their order: those of `before` come first. */
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

/** The size of a piece that takes 3 ms to copy or hash. */
export const PIECE_BYTES = 4 * 1024 * 1024;

/** Cuts a long run of bytes into pieces for one step each. */
export function* piecesOf(bytes: Buffer): Generator<Buffer> {
  for (let from = 0; from < bytes.length; from += PIECE_BYTES) {
    yield bytes.subarray(from, from + PIECE_BYTES);
  }
}

/** Measures work on many small things in bytes. */
export class SlicedWork {
  #bytes = 0;

  /** Counts `bytes` of work. Returns null while there is time for more, else a promise of it. */
  done(bytes: number): Promise<void> | null {
    this.#bytes += bytes;
    if (this.#bytes < STEP_BYTES) return null;
    this.#bytes = 0;
    return timeForMore();
  }
}

/** Returns whether a text takes more than one step to read. */
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
