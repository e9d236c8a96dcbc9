import { expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { ProgressSampler } from "../../src/engine/progress-sampler.ts";
import type { BatchSamples } from "../../src/store/progress.ts";

/** The counters and samples of one batch, and the number of times that they were read. */
function aStore(batchId: BatchId) {
  let samples: BatchSamples["samples"] = [];
  return {
    readCount: 0,
    completed: 0,
    /** Runs between a read and its answer. */
    beforeAnswer: async () => {},
    get samples() {
      return samples;
    },
    async findRunningProgress() {
      this.readCount++;
      const { completed } = this;
      const counters = { completed, failed: 0, inputTokens: 0, outputTokens: 0 };
      const found = [{ batchId, startedAtMs: 0, ...counters, samples }];
      await this.beforeAnswer();
      return found;
    },
    async recordSamples(progress: readonly BatchSamples[]) {
      const added = progress.flatMap((each) => each.samples);
      if (added.at(-1)!.atMs > (samples.at(-1)?.atMs ?? 0)) samples = added;
    },
  };
}

const ID = "batch_1" as BatchId;

test("two replicas take together as many samples of a batch as one, and read it no more often than that", async () => {
  const store = aStore(ID);
  let nowMs = 0;
  const samplers = [1, 2].map(
    () => new ProgressSampler({ store, running: () => [ID, ID], nowMs: () => nowMs }),
  );
  for (nowMs = 0; nowMs <= 3_600_000; nowMs += 500) {
    store.completed = nowMs / 500;
    for (const sampler of samplers) await sampler.sample();
  }
  const { samples } = store;
  expect(samples.length).toBeGreaterThan(50);
  expect(samples.length).toBeLessThanOrEqual(120);
  expect(samples).toEqual(samples.toSorted((a, b) => a.atMs - b.atMs));
  for (const { atMs, completed } of samples) expect(completed).toBe(atMs / 500);
  expect(store.readCount).toBeLessThan(2_000);
});

test("a replica that stands still while it takes a sample overwrites none that another one takes meanwhile", async () => {
  const store = aStore(ID);
  let nowMs = 1_000;
  const samplerOf = () => new ProgressSampler({ store, running: () => [ID], nowMs: () => nowMs });
  const [still, other] = [samplerOf(), samplerOf()];
  await other.sample();
  nowMs = 2_000;
  const { promise, resolve } = Promise.withResolvers<void>();
  store.beforeAnswer = () => promise;
  const late = still.sample();
  store.beforeAnswer = async () => {};
  for (; nowMs < 42_000; nowMs += 1_000) await other.sample();
  const before = store.samples;
  resolve();
  await late;
  expect(store.samples).toEqual(before);
});

test("a replica without lines under way asks for nothing", async () => {
  const store = aStore(ID);
  await new ProgressSampler({ store, running: () => [], nowMs: () => 5_000 }).sample();
  expect(store.readCount).toBe(0);
});
