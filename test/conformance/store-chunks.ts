import { expect, test } from "vitest";
import type { Usage } from "../../src/batch/batch.ts";
import {
  AFTER_LEASES_MS,
  aSegment,
  claimBy,
  claimChunk,
  NOW_MS,
  PROJECT,
  startBatch,
  WINDOW_MS,
} from "../support/store-builders.ts";
import type { OpenStore } from "./store.ts";

const usage: Usage = {
  inputTokens: 1,
  cachedTokens: 2,
  outputTokens: 3,
  reasoningTokens: 4,
  totalTokens: 5,
};

const blobOf = ({ blobKey, bytes }: { blobKey: string; bytes: number }) => ({ blobKey, bytes });

export function testChunks(open: OpenStore): void {
  testClaims(open);
  testJournal(open);
  testClosing(open);
}

function testClaims(open: OpenStore): void {
  test("the open routes are those that have a chunk to claim", async () => {
    await using opened = await open();
    const { store } = opened;
    expect(await store.listOpenRoutes(NOW_MS)).toEqual([]);
    await startBatch(store, ["qwen", "llama", "qwen", "mistral"]);
    expect((await store.listOpenRoutes(NOW_MS)).toSorted()).toEqual(["llama", "mistral", "qwen"]);

    await claimChunk(store, { routes: ["mistral"] });
    expect((await store.listOpenRoutes(NOW_MS)).toSorted()).toEqual(["llama", "qwen"]);
    const { lease } = await claimChunk(store, { routes: ["llama"] });
    await store.closeChunkIfLeased(lease, null, NOW_MS);
    expect(await store.listOpenRoutes(NOW_MS)).toEqual(["qwen"]);
    expect((await store.listOpenRoutes(AFTER_LEASES_MS)).toSorted()).toEqual(["mistral", "qwen"]);
  });

  test("a claimed chunk comes with all that is needed to run it", async () => {
    await using opened = await open();
    const { store } = opened;
    const { input, batch } = await startBatch(store, ["qwen", "llama"]);
    const claimed = await claimChunk(store, { routes: ["mistral", "llama"] });
    expect(claimed).toEqual({
      lease: { batchId: batch.id, chunkNumber: 1, epoch: expect.any(Number) },
      chunk: {
        batchId: batch.id,
        number: 1,
        route: "llama",
        lineCount: 10,
        extents: [{ start: 1_000, end: 2_000, firstLine: 11 }],
      },
      batch: await store.findBatch(PROJECT, batch.id),
      inputBlobKey: input.blobKey,
      segments: [],
    });
  });

  test("each chunk is claimed by one worker, and only for a route that it asks for", async () => {
    await using opened = await open();
    const { store } = opened;
    await startBatch(store, ["llama", "llama", "qwen"]);
    const numbers = [await claimChunk(store), await claimChunk(store, { owner: "other" })].map(
      ({ chunk }) => chunk.number,
    );
    expect(numbers).toEqual([0, 1]);
    expect(await store.claimChunk({ ...claimBy("worker"), routes: ["llama"] })).toBeNull();
    expect(await store.claimChunk({ ...claimBy("worker"), routes: [] })).toBeNull();
  });

  test("a chunk is not handed out once the window of its batch is over", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch } = await startBatch(store, ["llama"]);
    const last = claimBy("worker", batch.expiresAtMs - 1);
    const late = claimBy("worker", batch.expiresAtMs);

    expect(await store.listOpenRoutes(late.nowMs)).toEqual([]);
    expect(await store.claimChunk({ ...late, routes: ["llama"] })).toBeNull();
    expect(await store.claimChunk({ ...last, routes: ["llama"] })).not.toBeNull();
  });

  test("the batch that expires first goes first, whatever its route and age", async () => {
    await using opened = await open();
    const { store } = opened;
    const relaxed = await startBatch(store, ["a", "b"], { expiresAtMs: NOW_MS + WINDOW_MS });
    const urgent = await startBatch(store, ["b", "a"], { expiresAtMs: NOW_MS + 1_000 });
    const claimed = [];
    for (let i = 0; i < 4; i++) claimed.push(await claimChunk(store, { routes: ["a", "b"] }));
    expect(claimed.map(({ chunk }) => [chunk.batchId, chunk.number])).toEqual([
      [urgent.batch.id, 0],
      [urgent.batch.id, 1],
      [relaxed.batch.id, 0],
      [relaxed.batch.id, 1],
    ]);
  });
}

function testJournal(open: OpenStore): void {
  test("a segment and its counts are recorded together", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    const first = aSegment({ completed: 3, failed: 1, usage });
    const second = aSegment({ completed: 2, usage });
    const last = aSegment({ completed: 9, failed: 1, usage });
    expect(await store.recordSegmentIfLeased(one.lease, first)).toBe(true);
    expect(await store.recordSegmentIfLeased(one.lease, second)).toBe(true);
    expect(await store.closeChunkIfLeased(two.lease, last, NOW_MS)).toBe(true);

    const found = await store.findBatch(PROJECT, batch.id);
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

  test("the next holder of a chunk gets the segments of the earlier ones, oldest first", async () => {
    await using opened = await open();
    const { store } = opened;
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
    await using opened = await open();
    const { store } = opened;
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    const tooMany = aSegment({ completed: 11 });
    await expect(store.recordSegmentIfLeased(lease, tooMany)).rejects.toThrow();
    await expect(store.closeChunkIfLeased(lease, tooMany, NOW_MS)).rejects.toThrow();
    expect((await store.findBatch(PROJECT, batch.id))?.counts.completed).toBe(0);
    expect(await store.findUnknownBlobKeys([tooMany.blobKey])).toEqual([tooMany.blobKey]);
    expect(await store.closeChunkIfLeased(lease, aSegment(), NOW_MS)).toBe(true);
  });
}

function testClosing(open: OpenStore): void {
  test("a batch moves to finalizing with its last open chunk, in the same step", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    expect(await store.closeChunkIfLeased(two.lease, null, NOW_MS + 1)).toBe(true);
    expect((await store.findBatch(PROJECT, batch.id))?.status).toBe("in_progress");
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).toBeNull();
    expect(await store.closeChunkIfLeased(one.lease, aSegment(), NOW_MS + 2)).toBe(true);
    expect(await store.findBatch(PROJECT, batch.id)).toMatchObject({
      status: "finalizing",
      finalizingAtMs: NOW_MS + 2,
    });
  });

  test("a chunk left open by a worker without a lease keeps its batch in progress", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    await store.releaseChunkIfLeased(one.lease);
    await store.closeChunkIfLeased(two.lease, null, NOW_MS);
    expect((await store.findBatch(PROJECT, batch.id))?.status).toBe("in_progress");
  });

  test("a closed chunk takes no more segments and is never claimed again", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch } = await startBatch(store, ["llama", "qwen"]);
    const { lease } = await claimChunk(store);
    await store.closeChunkIfLeased(lease, null, NOW_MS);
    expect(await store.recordSegmentIfLeased(lease, aSegment())).toBe(false);
    expect(await store.closeChunkIfLeased(lease, aSegment(), NOW_MS)).toBe(false);
    expect(await store.releaseChunkIfLeased(lease)).toBe(false);
    const claim = { ...claimBy("worker", AFTER_LEASES_MS), routes: ["llama"] };
    expect(await store.claimChunk(claim)).toBeNull();
    expect((await store.findBatch(PROJECT, batch.id))?.counts.completed).toBe(0);
  });
}
