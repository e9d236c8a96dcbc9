/**
 * The course of a batch: what its counters were at some moments of its life. The number of moments is bounded. A batch that
 * goes on has them further apart, so a day takes as much room as a minute.
 */
import type { Batch } from "./batch.ts";
import type { LatencyCounts } from "./latency.ts";
import { isFinal } from "./status.ts";

/** The counters of a batch at one moment. */
export interface ProgressSample {
  readonly atMs: number;
  readonly completed: number;
  readonly failed: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
}

/** A sample as the store keeps it: the values in the order of the interface. */
export type StoredSample = readonly [number, number, number, number, number];

export const storedSample = (sample: ProgressSample): StoredSample => [
  sample.atMs,
  sample.completed,
  sample.failed,
  sample.inputTokens,
  sample.outputTokens,
];

export const sampleFromStored = ([
  atMs,
  completed,
  failed,
  inputTokens,
  outputTokens,
]: StoredSample): ProgressSample => ({ atMs, completed, failed, inputTokens, outputTokens });

/** What the store keeps about the course of a batch. */
export interface StoredProgress {
  readonly samples: readonly ProgressSample[];
  readonly latencyCounts: LatencyCounts | null;
}

export const MAX_SAMPLES = 120;
const SHORTEST_INTERVAL_MS = 1_000;
/** The loop that takes the samples is not exact. */
const TOLERANCE = 0.9;

/** Returns the time at which the next sample of a batch is due. */
export function nextSampleAtMs(startedAtMs: number, lastAtMs: number): number {
  let intervalMs = SHORTEST_INTERVAL_MS;
  while (lastAtMs - startedAtMs >= intervalMs * MAX_SAMPLES) intervalMs *= 2;
  return lastAtMs + intervalMs * TOLERANCE;
}

/** Adds a sample. When there are too many, every second one goes. */
export function addSample(
  samples: readonly ProgressSample[],
  sample: ProgressSample,
): readonly ProgressSample[] {
  const all = [...samples, sample];
  return all.length <= MAX_SAMPLES ? all : all.filter((_, at) => at % 2 === 0);
}

/** A moment in the life of a batch, with the rates since the moment before. */
export interface ProgressPoint extends ProgressSample {
  readonly linesPerSecond: number;
  readonly tokensPerSecond: number;
}

/**
 * Returns the course of a batch from the moment at which it began to run up to now, or to its end. Both are on its row, so a
 * batch that was over before the first sample has a course, too. Empty for a batch that has not begun.
 */
export function courseOf(
  batch: Batch,
  samples: readonly ProgressSample[],
  nowMs: number,
): readonly ProgressPoint[] {
  const { inProgressAtMs: startedAtMs } = batch;
  if (startedAtMs === null) return [];
  const endAtMs = Math.max(startedAtMs, endOf(batch) ?? nowMs);
  const between = samples.filter(({ atMs }) => atMs > startedAtMs && atMs < endAtMs);
  const { counts, usage } = batch;
  const course: ProgressPoint[] = [{ ...START, atMs: startedAtMs }];
  const pauses = pausesIn(batch, between.at(-1)?.atMs ?? startedAtMs, endAtMs);
  for (const atMs of [...pauses, endAtMs]) between.push({ atMs, ...counts, ...usage });
  for (const sample of between) course.push(pointAfter(course.at(-1) ?? sample, sample));
  return course;
}

/**
 * Returns the moment at which the batch paused, if no sample was taken since. Without it, a sample of a second would look as slow
 * as the hours for which the batch waits.
 */
function pausesIn({ paused }: Batch, lastAtMs: number, endAtMs: number): number[] {
  const sinceMs = paused?.sinceMs ?? endAtMs;
  return sinceMs > lastAtMs && sinceMs < endAtMs ? [sinceMs] : [];
}

const START = {
  completed: 0,
  failed: 0,
  inputTokens: 0,
  outputTokens: 0,
  linesPerSecond: 0,
  tokensPerSecond: 0,
};

/** The moment of the last answer; null while more may come. */
const endOf = (batch: Batch): number | null =>
  batch.status === "finalizing" || isFinal(batch.status)
    ? (batch.finalizingAtMs ?? batch.cancelledAtMs ?? batch.expiredAtMs ?? batch.failedAtMs)
    : null;

/** Counters go back when a segment was lost. A rate does not. */
function pointAfter(before: ProgressSample, sample: ProgressSample): ProgressPoint {
  const { atMs, completed, failed, inputTokens, outputTokens } = sample;
  const seconds = (atMs - before.atMs) / 1000;
  const perSecond = (count: (at: ProgressSample) => number) =>
    seconds > 0 ? Math.max(0, (count(sample) - count(before)) / seconds) : 0;
  return {
    atMs,
    completed,
    failed,
    inputTokens,
    outputTokens,
    linesPerSecond: perSecond((at) => at.completed + at.failed),
    tokensPerSecond: perSecond((at) => at.inputTokens + at.outputTokens),
  };
}
