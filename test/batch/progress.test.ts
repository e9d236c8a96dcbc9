import { expect, test } from "vitest";
import { latencyBucket, noLatencies, summarizeLatencies } from "../../src/batch/latency.ts";
import {
  addSample,
  MAX_SAMPLES,
  nextSampleAtMs,
  type ProgressSample,
} from "../../src/batch/progress.ts";

const DAY_MS = 86_400_000;

test("a batch of a week has no more samples than one of an hour, over its whole life", () => {
  for (const lifeMs of [3_600_000, 7 * DAY_MS]) {
    let samples: readonly ProgressSample[] = [];
    let dueAtMs = nextSampleAtMs(0, 0);
    let takenCount = 0;
    for (let atMs = 0; atMs < lifeMs; atMs += 1_000) {
      if (atMs < dueAtMs) continue;
      const sample = { atMs, completed: atMs, failed: 0, inputTokens: 0, outputTokens: 0 };
      samples = addSample(samples, sample);
      dueAtMs = nextSampleAtMs(0, atMs);
      takenCount++;
    }
    expect(samples.length).toBeGreaterThan(MAX_SAMPLES / 4);
    expect(samples.length).toBeLessThanOrEqual(MAX_SAMPLES);
    expect(takenCount).toBeLessThan(2_000);
    const gaps = samples.map(({ atMs }, at) => atMs - (samples[at - 1]?.atMs ?? 0));
    expect(Math.max(...gaps)).toBeLessThan(lifeMs / 20);
    expect(lifeMs - (samples.at(-1)?.atMs ?? 0)).toBeLessThan(lifeMs / 20);
  }
});

test("percentiles are within the bucket of the line that they name", () => {
  const latencies = Array.from({ length: 1_000 }, (_, n) => n + 1);
  const counts = noLatencies();
  for (const each of latencies) counts[latencyBucket(each)]!++;
  const { percentiles, lines, buckets } = summarizeLatencies(counts)!;
  expect(lines).toBe(1_000);
  expect(percentiles.p50).toBeGreaterThan(490);
  expect(percentiles.p50).toBeLessThan(510);
  expect(percentiles.p99).toBeGreaterThan(980);
  expect(percentiles.p99).toBeLessThanOrEqual(1_000);
  expect(buckets.at(-1)).toEqual({ upToMs: null, lines: 0 });
  expect(summarizeLatencies(noLatencies())).toBeNull();
});

test("what takes longer than all bounds has a bucket, too", () => {
  const counts = noLatencies();
  counts[latencyBucket(1e9)]!++;
  expect(summarizeLatencies(counts)).toMatchObject({ percentiles: { p50: 1_000_000 } });
});
