import { expect, test } from "vitest";
import { noLatencies } from "../../src/batch/latency.ts";
import type { ProgressSample } from "../../src/batch/progress.ts";
import {
  aSegment,
  claimChunk,
  insertBatch,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const latencies = (counts: Readonly<Record<number, number>>): number[] =>
  Object.assign(noLatencies(), counts);

const aSample = (completed: number): ProgressSample => ({
  atMs: 1_000 * completed,
  completed,
  failed: 0,
  inputTokens: 7,
  outputTokens: 2 ** 40,
});

export function testProgress(open: OpenStore): void {
  test("latencies are summed up in the commit of their segment, once, and go with it", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"]);
    expect(await store.findProgress(batch.id)).toEqual({ samples: [], latencyCounts: null });
    const { lease } = await claimChunk(store);
    const lost = aSegment({ latencyCounts: latencies({ 3: 2, 28: 1 }) });
    const unsent = aSegment();
    const kept = aSegment({ latencyCounts: latencies({ 3: 5 }) });
    for (const entry of [lost, unsent, kept, kept]) await store.recordSegmentIfLeased(lease, entry);
    expect((await store.findProgress(batch.id)).latencyCounts).toEqual(latencies({ 3: 7, 28: 1 }));
    await store.removeSegmentsIfLeased(lease, [lost.blobKey, unsent.blobKey]);
    expect((await store.findProgress(batch.id)).latencyCounts).toEqual(latencies({ 3: 5 }));
  });

  test("samples are replaced, beside the counters of batches in progress", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"]);
    const { batch: waiting } = await insertBatch(store);
    const { lease } = await claimChunk(store);
    await store.recordSegmentIfLeased(lease, aSegment({ completed: 1 }));
    const [running, ...others] = await store.findRunningProgress([batch.id, waiting.id]);
    expect(others).toEqual([]);
    expect(running).toMatchObject({ batchId: batch.id, completed: 1, failed: 0, samples: [] });
    await store.recordSamples([{ batchId: batch.id, samples: [aSample(1)] }]);
    const samples = [aSample(1), aSample(2)];
    await store.recordSamples([{ batchId: batch.id, samples }]);
    expect(await store.findRunningProgress([batch.id])).toMatchObject([{ samples }]);
    expect((await store.findProgress(batch.id)).samples).toEqual(samples);
  });

  test("samples from before the last one do not replace it", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"]);
    const samples = [aSample(1), aSample(9), aSample(10)];
    for (const each of [samples, [aSample(1), aSample(2)], [aSample(10)]]) {
      await store.recordSamples([{ batchId: batch.id, samples: each }]);
    }
    expect((await store.findProgress(batch.id)).samples).toEqual(samples);
  });

  test("samples go with their batch, and a batch that is gone gets none", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const progress = [{ batchId: batch.id, samples: [aSample(1)] }];
    await store.recordSamples(progress);
    await store.deleteBatchIfPresent({ project: PROJECT, id: batch.id }, { withInput: false });
    await store.forgetBatch(batch.id);
    await store.recordSamples(progress);
    expect(await store.findProgress(batch.id)).toEqual({ samples: [], latencyCounts: null });
  });
}
