import { expect, test } from "vitest";
import type { Usage } from "../../src/batch/batch.ts";
import type { Segment } from "../../src/store/chunks.ts";
import {
  AFTER_LEASES_MS,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimFirst,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const usage: Usage = {
  inputTokens: 1,
  cachedTokens: 2,
  outputTokens: 3,
  reasoningTokens: 4,
  totalTokens: 5,
};

const blobOf = ({ blobKey, bytes, crc32 }: Segment): Segment => ({ blobKey, bytes, crc32 });

export function testChunks(open: OpenStore): void {
  testJournal(open);
  testClosing(open);
}

function testJournal(open: OpenStore): void {
  test("a segment and its counts are recorded together", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    const first = aSegment({ completed: 3, failed: 1, usage });
    const second = aSegment({ completed: 2, usage });
    const last = aSegment({ completed: 9, failed: 1, usage });
    expect(await store.recordSegmentIfLeased(one.lease, first)).toBe(true);
    expect(await store.recordSegmentIfLeased(one.lease, second)).toBe(true);
    expect(await store.closeChunkIfLeased(two.lease, last)).toBe(true);

    const found = await store.findBatch({ project: PROJECT, id: batch.id });
    expect(found?.counts).toEqual({ total: 20, completed: 14, failed: 2 });
    expect(found?.usage).toEqual({
      inputTokens: 3,
      cachedTokens: 6,
      outputTokens: 9,
      reasoningTokens: 12,
      totalTokens: 15,
    });
    const journals = await store.listChunkJournals(batch.id);
    expect(journals.map(({ segments }) => segments)).toEqual([
      [blobOf(first), blobOf(second)],
      [blobOf(last)],
    ]);
  });

  test("failures are counted by status and code with their segment, once, and go with it", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    const bad = { status: 400, code: "bad" };
    const late = { status: null, code: "request_timeout" };
    const first = aSegment({ failed: 3, failures: [{ ...bad, count: 3 }] });
    const last = aSegment({
      failed: 3,
      failures: [
        { ...late, count: 2 },
        { ...bad, count: 1 },
      ],
    });
    await store.recordSegmentIfLeased(one.lease, first);
    await store.recordSegmentIfLeased(one.lease, first);
    await store.recordSegmentIfLeased(one.lease, aSegment());
    await store.closeChunkIfLeased(two.lease, last);
    const found = () => store.findBatch({ project: PROJECT, id: batch.id });
    const both = [
      { ...bad, count: 4 },
      { ...late, count: 2 },
    ];
    expect((await found())?.failures).toEqual(both);
    expect((await store.listBatches({ project: PROJECT, limit: 1, after: null }))?.data[0]).toEqual(
      await found(),
    );
    const stale = await claimChunk(at(store, AFTER_LEASES_MS));
    expect(await store.recordSegmentIfLeased(one.lease, aSegment({ failures: both }))).toBe(false);
    expect((await found())?.failures).toEqual(both);
    await store.removeSegmentsIfLeased(stale.lease, [first.blobKey]);
    expect((await found())?.failures).toEqual([
      { ...late, count: 2 },
      { ...bad, count: 1 },
    ]);
  });

  test("the next holder of a chunk gets the segments of the earlier ones, oldest first", async () => {
    const { store } = await open();
    await startBatch(store, ["llama", "llama"]);
    const first = await claimChunk(store);
    const neighbour = await claimChunk(store);
    const [a, b, c] = [aSegment(), aSegment(), aSegment()];
    await store.recordSegmentIfLeased(first.lease, a);
    await store.recordSegmentIfLeased(neighbour.lease, aSegment());
    await store.recordSegmentIfLeased(first.lease, b);
    await store.releaseChunkIfLeased(first.lease);
    const second = await claimChunk(store);
    expect(second.segments).toEqual([blobOf(a), blobOf(b)]);
    await store.recordSegmentIfLeased(second.lease, c);
    await store.releaseChunkIfLeased(second.lease);
    expect((await claimChunk(store)).segments).toEqual([a, b, c].map(blobOf));
  });

  test("counts that cannot be true are refused together with their segment", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    const tooMany = aSegment({ completed: 11 });
    await expect(store.recordSegmentIfLeased(lease, tooMany)).rejects.toThrow();
    await expect(store.closeChunkIfLeased(lease, tooMany)).rejects.toThrow();
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.counts.completed).toBe(0);
    expect(await store.findGarbage([tooMany.blobKey])).toEqual([tooMany.blobKey]);
    expect(await store.closeChunkIfLeased(lease, aSegment())).toBe(true);
  });
}

function testClosing(open: OpenStore): void {
  test("a batch moves to finalizing with its last open chunk, in the same step", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    expect(await at(store, NOW_MS + 1).closeChunkIfLeased(two.lease, null)).toBe(true);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("in_progress");
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).toBeNull();
    expect(await at(store, NOW_MS + 2).closeChunkIfLeased(one.lease, aSegment())).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "finalizing",
      finalizingAtMs: NOW_MS + 2,
    });
  });

  test("a batch moves to finalizing once, in whatever order and however close together its chunks are closed", async () => {
    const { store } = await open();
    for (let round = 0; round < 10; round++) {
      const { batch } = await startBatch(store, Array<string>(12).fill("llama"));
      const claimed = [];
      while (claimed.length < 12) claimed.push(await claimChunk(store));
      await Promise.all(
        claimed.map(async ({ lease }, n) => {
          const last = n % 4 === 0 ? null : aSegment({ completed: 1 });
          expect(await store.closeChunkIfLeased(lease, last)).toBe(true);
          expect(await store.closeChunkIfLeased(lease, last)).toBe(false);
        }),
      );
      const found = await store.findBatch({ project: PROJECT, id: batch.id });
      expect(found).toMatchObject({ status: "finalizing", counts: { completed: 9 } });
    }
  });

  test("a chunk left open by a worker without a lease keeps its batch in progress", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    await store.releaseChunkIfLeased(one.lease);
    await store.closeChunkIfLeased(two.lease, null);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("in_progress");
  });

  test("a closed chunk takes no more segments and is never claimed again", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "qwen"]);
    const { lease } = await claimChunk(store);
    await store.closeChunkIfLeased(lease, null);
    expect(await store.recordSegmentIfLeased(lease, aSegment())).toBe(false);
    expect(await store.closeChunkIfLeased(lease, aSegment())).toBe(false);
    expect(await store.releaseChunkIfLeased(lease)).toBe(false);
    const claim = { ...claimBy("worker"), batchId: batch.id, model: "llama" };
    expect(await claimFirst(at(store, AFTER_LEASES_MS), claim)).toBeNull();
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.counts.completed).toBe(0);
  });
}
