import { expect, test } from "vitest";
import {
  AFTER_LEASES_MS,
  aPlan,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimFirst,
  insertBatch,
  LEASE_TTL_MS,
  NOW_MS,
  openRoutes,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

export function testLeases(open: OpenStore): void {
  testChunkLeases(open);
  testRenewal(open);
}

function testChunkLeases(open: OpenStore): void {
  test("a chunk is claimable again exactly when its lease has run out", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    await claimChunk(store);
    const claim = (nowMs: number) =>
      claimFirst(at(store, nowMs), { ...claimBy("other"), batchId: batch.id, model: "llama" });
    expect(await claim(AFTER_LEASES_MS - 1)).toBeNull();
    expect(await claim(AFTER_LEASES_MS)).not.toBeNull();
  });

  test("a worker that was overtaken changes nothing", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const stale = await claimChunk(store, { owner: "a" });
    const current = await claimChunk(at(store, AFTER_LEASES_MS), { owner: "b" });
    expect(current.lease.epoch).toBeGreaterThan(stale.lease.epoch);

    const segment = aSegment();
    expect(await store.recordSegmentIfLeased(stale.lease, segment)).toBe(false);
    expect(await at(store, AFTER_LEASES_MS).closeChunkIfLeased(stale.lease, segment)).toBe(false);
    expect(await store.releaseChunkIfLeased(stale.lease)).toBe(false);
    expect(await store.findGarbage([segment.blobKey])).toEqual([segment.blobKey]);
    const found = await store.findBatch({ project: PROJECT, id: batch.id });
    expect(found).toMatchObject({ status: "in_progress", counts: { completed: 0 } });
    expect(await store.recordSegmentIfLeased(current.lease, segment)).toBe(true);
  });

  test("a chunk that is given back for another of its models is claimed by that one", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    expect(await store.releaseChunkIfLeased(lease, "large")).toBe(true);
    expect(await openRoutes(store)).toEqual(["large"]);
    const claim = (model: string) =>
      claimFirst(store, { ...claimBy("worker"), batchId: batch.id, model });
    expect(await claim("llama")).toBeNull();
    expect((await claim("large"))?.chunk).toMatchObject({
      number: lease.chunkNumber,
      model: "large",
    });
    expect(await store.releaseChunkIfLeased(lease, "llama")).toBe(false);
  });

  test("the same worker's earlier lease is as stale as anybody's", async () => {
    const { store } = await open();
    await startBatch(store);
    const earlier = await claimChunk(store, { owner: "a" });
    await store.releaseChunkIfLeased(earlier.lease);
    const later = await claimChunk(store, { owner: "a" });
    expect(await store.recordSegmentIfLeased(earlier.lease, aSegment())).toBe(false);
    expect(await store.recordSegmentIfLeased(later.lease, aSegment())).toBe(true);
  });

  test("a chunk that was given back takes nothing from its former holder and is free at once", async () => {
    const { store } = await open();
    await startBatch(store);
    const { lease } = await claimChunk(store);
    expect(await store.releaseChunkIfLeased(lease)).toBe(true);
    expect(await store.releaseChunkIfLeased(lease)).toBe(false);
    expect(await store.recordSegmentIfLeased(lease, aSegment())).toBe(false);
    expect(await store.closeChunkIfLeased(lease, null)).toBe(false);
    expect(await openRoutes(store)).toEqual(["llama"]);
  });

  test("of many workers that claim at once, each chunk has one", async () => {
    const { store } = await open();
    const { batch } = await startBatch(
      store,
      Array.from({ length: 20 }, () => "llama"),
    );
    const claims = await Promise.all(
      Array.from({ length: 30 }, (_, i) =>
        claimFirst(store, { ...claimBy(`worker-${i}`), batchId: batch.id, model: "llama" }),
      ),
    );
    const numbers = claims.flatMap((claimed) => (claimed === null ? [] : [claimed.chunk.number]));
    expect(numbers.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 20 }, (_, i) => i));
  });

  test("of many workers that close their chunks at once, the last moves the batch on", async () => {
    const { store } = await open();
    const models = Array.from({ length: 20 }, () => "llama");
    const { batch } = await startBatch(store, models);
    const claims = [];
    for (const _ of models) claims.push(await claimChunk(store));
    const closed = await Promise.all(
      claims.map(({ lease }) => store.closeChunkIfLeased(lease, aSegment())),
    );
    expect(closed).toEqual(models.map(() => true));
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "finalizing",
      counts: { completed: 20 },
    });
  });
}

function testRenewal(open: OpenStore): void {
  test("a renewed lease is not for others when the old one would have run out", async () => {
    const { store } = await open();
    await startBatch(store);
    const { lease: chunk } = await claimChunk(store);
    const { batch } = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("worker"));
    const renewal = await at(store, AFTER_LEASES_MS - 1).renewLeases(
      { batches: [validation!.lease], chunks: [chunk] },
      claimBy("worker"),
    );
    expect(renewal).toEqual({
      lostBatches: [],
      lostChunks: [],
      stopping: [],
      paused: [],
      budgets: [],
    });

    expect(await openRoutes(at(store, AFTER_LEASES_MS))).toEqual([]);
    expect(await at(store, AFTER_LEASES_MS).claimBatchToValidate(claimBy("other"))).toBeNull();
    const later = AFTER_LEASES_MS + LEASE_TTL_MS;
    expect(await openRoutes(at(store, later))).toEqual(["llama"]);
    const claimed = await at(store, later).claimBatchToValidate(claimBy("other"));
    expect(claimed?.batch.id).toBe(batch.id);
  });

  test("a renewal names the leases that are lost and keeps the others", async () => {
    const { store } = await open();
    await startBatch(store, ["llama", "qwen", "mistral"]);
    const overtaken = (await claimChunk(store, { model: "llama" })).lease;
    const kept = (await claimChunk(store, { model: "qwen" })).lease;
    const closed = (await claimChunk(store, { model: "mistral" })).lease;
    await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("worker"));
    await claimChunk(at(store, AFTER_LEASES_MS), { owner: "other" });
    await store.closeChunkIfLeased(closed, null);
    await store.startBatchIfLeased(validation!.lease, aPlan(["phi"]));

    const held = { batches: [validation!.lease], chunks: [overtaken, kept, closed] };
    const renewal = await at(store, AFTER_LEASES_MS).renewLeases(held, claimBy("worker"));
    expect(renewal.lostBatches).toEqual([validation!.lease]);
    expect(renewal.lostChunks).toEqual([overtaken, closed]);
    expect(await store.recordSegmentIfLeased(kept, aSegment())).toBe(true);
  });

  test("a renewal tells once for each batch that it is to stop, and why", async () => {
    const { store } = await open();
    const expired = await startBatch(store, ["a", "a"], { expiresAtMs: NOW_MS + 10 });
    const cancelled = await startBatch(store, ["b"]);
    await startBatch(store, ["c"]);
    const chunks = [];
    for (const model of ["a", "a", "b", "c"]) {
      chunks.push((await claimChunk(store, { model })).lease);
    }
    await at(store, NOW_MS + 10).stopExpiredBatches();
    await at(store, NOW_MS + 10).cancelBatchIfOpen({ project: PROJECT, id: cancelled.batch.id });
    const renewal = await at(store, NOW_MS + 10).renewLeases(
      { batches: [], chunks },
      claimBy("worker"),
    );
    const { stopping, ...others } = renewal;
    // A database may return them in any order.
    expect(stopping).toHaveLength(2);
    expect(stopping).toContainEqual({ batchId: expired.batch.id, reason: "expired" });
    expect(stopping).toContainEqual({ batchId: cancelled.batch.id, reason: "cancelled" });
    expect(others).toEqual({ lostBatches: [], lostChunks: [], paused: [], budgets: [] });
  });

  test("a lost lease tells nothing about its batch", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("worker"));
    await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
    const held = { batches: [validation!.lease], chunks: [] };
    expect(await store.renewLeases(held, claimBy("worker"))).toEqual({
      lostBatches: [validation!.lease],
      lostChunks: [],
      stopping: [],
      paused: [],
      budgets: [],
    });
  });

  test("a holder learns with its renewal that the batch of a chunk has a budget", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    const renew = () => store.renewLeases({ batches: [], chunks: [lease] }, claimBy("worker"));
    expect((await renew()).budgets).toEqual([]);
    for (const budget of ["5", "0.5"]) {
      await store.updateBatchIfAllowed(batch, { budget });
      expect((await renew()).budgets).toEqual([{ batchId: batch.id, budget }]);
    }
    await store.updateBatchIfAllowed(batch, { budget: null });
    expect((await renew()).budgets).toEqual([]);
  });
}
