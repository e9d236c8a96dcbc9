/**
 * Counts how long lines took, in buckets of fixed bounds. The counts of two processes, or of two segments, can therefore be
 * added, and their size does not grow with the batch.
 */

/** Five buckets for each power of ten, in milliseconds. The last bucket, for what takes longer, has no bound. */
const LATENCY_BOUNDS_MS: readonly number[] = [
  1, 2, 4, 6, 10, 16, 25, 40, 63, 100, 160, 250, 400, 630, 1_000, 1_600, 2_500, 4_000, 6_300,
  10_000, 16_000, 25_000, 40_000, 63_000, 100_000, 160_000, 250_000, 400_000, 630_000, 1_000_000,
];

/** The lines in each bucket: one number more than there are bounds. */
export type LatencyCounts = readonly number[];

const BUCKET_COUNT = LATENCY_BOUNDS_MS.length + 1;

export const noLatencies = (): number[] => new Array<number>(BUCKET_COUNT).fill(0);

/** Returns the bucket of a line. */
export function latencyBucket(latencyMs: number): number {
  const at = LATENCY_BOUNDS_MS.findIndex((bound) => latencyMs <= bound);
  return at === -1 ? LATENCY_BOUNDS_MS.length : at;
}

/** A batch of an older version has no counts, and neither has a segment of lines that were not sent. */
export const addLatencies = (a: LatencyCounts | null, b: LatencyCounts | null): LatencyCounts =>
  noLatencies().map((_, at) => Math.max(0, (a?.[at] ?? 0) + (b?.[at] ?? 0)));

export const negatedLatencies = (counts: LatencyCounts): LatencyCounts =>
  counts.map((count) => -count);

export interface LatencyBucket {
  /** The longest time of the bucket; null for the last one. */
  readonly upToMs: number | null;
  readonly lines: number;
}

export interface LatencySummary {
  readonly lines: number;
  /** The time within which this part of the lines ended, by its part of a hundred. */
  readonly percentiles: Readonly<Record<"p50" | "p90" | "p95" | "p99", number>>;
  readonly buckets: readonly LatencyBucket[];
}

/** Returns null while no line has been counted. */
export function summarizeLatencies(counts: LatencyCounts | null): LatencySummary | null {
  const lines = (counts ?? []).reduce((sum, count) => sum + count, 0);
  if (counts === null || lines === 0) return null;
  const percentile = (share: number) => Math.round(quantileMs(counts, lines * share));
  return {
    lines,
    percentiles: {
      p50: percentile(0.5),
      p90: percentile(0.9),
      p95: percentile(0.95),
      p99: percentile(0.99),
    },
    buckets: counts.map((count, at) => ({ upToMs: LATENCY_BOUNDS_MS[at] ?? null, lines: count })),
  };
}

/** Takes the lines of a bucket to be spread evenly over it. What has no bound is taken to be at the last one. */
function quantileMs(counts: LatencyCounts, rank: number): number {
  let below = 0;
  for (const [at, count] of counts.entries()) {
    const [from, to] = [LATENCY_BOUNDS_MS[at - 1] ?? 0, LATENCY_BOUNDS_MS[at]];
    if (to === undefined) return from;
    if (count > 0 && below + count >= rank) return from + ((to - from) * (rank - below)) / count;
    below += count;
  }
  return 0;
}
