import { expect, test } from "vitest";
import { newBatchId } from "../../src/batch/batch.ts";
import {
  AFTER_LEASES_MS,
  aFailure,
  aPlan,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimFirst,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertBatch,
  NO_RESULT,
  NOW_MS,
  openRoutes,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const SOON_MS = NOW_MS + 10;

export function testStopping(open: OpenStore): void {
  testCancel(open);
  testExpiry(open);
  testUnheldChunks(open);
}

function testCancel(open: OpenStore): void {
  test("a batch that waits for validation is cancelled without having run", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    expect(await at(store, SOON_MS).cancelBatchIfOpen({ project: PROJECT, id: batch.id })).toBe(
      true,
    );
    const cancelling = {
      ...batch,
      status: "cancelling",
      stopReason: "cancelled",
      cancellingAtMs: SOON_MS,
    };
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual(cancelling);
    expect(await store.claimBatchToValidate(claimBy("validator"))).toBeNull();

    const lease = await claimToFinalize(store);
    expect(await finishBatch(at(store, SOON_MS + 1), lease, NO_RESULT)).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual({
      ...cancelling,
      status: "cancelled",
      cancelledAtMs: SOON_MS + 1,
    });
  });

  test("cancelling does not wait for the validator, whose commit comes to nothing", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    expect(await at(store, SOON_MS).cancelBatchIfOpen({ project: PROJECT, id: batch.id })).toBe(
      true,
    );
    expect(await at(store, SOON_MS).startBatchIfLeased(validation!.lease, aPlan())).toBe(false);
    expect(await at(store, SOON_MS).failBatchIfLeased(validation!.lease, aFailure())).toBe(false);
    const lease = await claimToFinalize(store);
    expect(lease.epoch).toBeGreaterThan(validation!.lease.epoch);
    expect(await finishBatch(at(store, SOON_MS), validation!.lease, NO_RESULT)).toBe(false);
    expect(await finishBatch(at(store, SOON_MS), lease, NO_RESULT)).toBe(true);
  });

  test("cancelling closes the chunks that no replica holds and leaves the others to their holders", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama", "llama"]);
    const held = await claimChunk(store);
    expect(await at(store, SOON_MS).cancelBatchIfOpen({ project: PROJECT, id: batch.id })).toBe(
      true,
    );
    expect(await openRoutes(at(store, AFTER_LEASES_MS))).toEqual([]);
    const claim = { ...claimBy("worker"), batchId: batch.id, model: "llama" };
    expect(await claimFirst(store, claim)).toBeNull();
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).toBeNull();

    expect(await store.recordSegmentIfLeased(held.lease, aSegment({ completed: 4 }))).toBe(true);
    expect(await at(store, SOON_MS).closeChunkIfLeased(held.lease, aSegment({ failed: 1 }))).toBe(
      true,
    );
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "cancelling",
      finalizingAtMs: null,
      counts: { total: 30, completed: 5, failed: 1 },
    });
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).not.toBeNull();
  });

  test("a batch cancelled while it is finalized ends cancelled, with what was written", async () => {
    const { store } = await open();
    const { batch } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    expect(await at(store, SOON_MS).cancelBatchIfOpen({ project: PROJECT, id: batch.id })).toBe(
      true,
    );
    expect(await store.claimBatchToFinalize(claimBy("other"))).toBeNull();
    expect(await finishBatch(at(store, SOON_MS + 1), lease, NO_RESULT)).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "cancelled",
      completedAtMs: null,
      cancelledAtMs: SOON_MS + 1,
      counts: { completed: 10 },
    });
  });

  test("a batch is cancelled once, and never when it is final, expired or unknown", async () => {
    const { store } = await open();
    const completed = await finalizingBatch(store);
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    const expired = await startBatch(store, ["llama"], { expiresAtMs: SOON_MS });
    await at(store, SOON_MS).stopExpiredBatches();
    const cancelled = await insertBatch(store);
    await store.cancelBatchIfOpen({ project: PROJECT, id: cancelled.batch.id });
    for (const { batch } of [completed, expired, cancelled]) {
      const before = await store.findBatch({ project: PROJECT, id: batch.id });
      expect(
        await at(store, SOON_MS + 1).cancelBatchIfOpen({ project: PROJECT, id: batch.id }),
      ).toBe(false);
      expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual(before);
    }
    expect(await store.cancelBatchIfOpen({ project: PROJECT, id: newBatchId(NOW_MS) })).toBe(false);
  });
}

function testExpiry(open: OpenStore): void {
  test("a batch stops exactly when its window is over, and once", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"], { expiresAtMs: SOON_MS });
    await startBatch(store, ["qwen"]);
    expect(await at(store, SOON_MS - 1).stopExpiredBatches()).toEqual([]);
    expect(await at(store, SOON_MS).stopExpiredBatches()).toEqual([batch.id]);
    expect(await at(store, SOON_MS).stopExpiredBatches()).toEqual([]);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "in_progress",
      stopReason: "expired",
    });
    expect(await openRoutes(at(store, SOON_MS))).toEqual(["qwen"]);
  });

  test("an expired batch ends expired once its holders are done", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"], { expiresAtMs: SOON_MS });
    const held = await claimChunk(store);
    await at(store, SOON_MS).stopExpiredBatches();
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).toBeNull();
    expect(await at(store, SOON_MS).closeChunkIfLeased(held.lease, aSegment())).toBe(true);
    const lease = await claimToFinalize(store);
    expect(await finishBatch(at(store, SOON_MS + 1), lease, NO_RESULT)).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "expired",
      finalizingAtMs: null,
      expiredAtMs: SOON_MS + 1,
      counts: { total: 20, completed: 1 },
    });
  });

  test("a batch that expires before it is validated ends expired, and its validator is fenced", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store, { expiresAtMs: SOON_MS });
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    expect(await at(store, SOON_MS).stopExpiredBatches()).toEqual([batch.id]);
    expect(await at(store, SOON_MS).startBatchIfLeased(validation!.lease, aPlan())).toBe(false);
    expect(await at(store, SOON_MS).claimBatchToValidate(claimBy("validator"))).toBeNull();
    const lease = await claimToFinalize(store);
    expect(await at(store, SOON_MS).failBatchIfLeased(lease, aFailure())).toBe(false);
    expect(await at(store, SOON_MS).startBatchIfLeased(lease, aPlan())).toBe(false);
    expect(await finishBatch(at(store, SOON_MS), lease, NO_RESULT)).toBe(true);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("expired");
  });

  test("a batch that has all its answers, or is cancelled, does not expire", async () => {
    const { store } = await open();
    const finalizing = await finalizingBatch(store, { expiresAtMs: SOON_MS });
    const cancelled = await insertBatch(store, { expiresAtMs: SOON_MS });
    await store.cancelBatchIfOpen({ project: PROJECT, id: cancelled.batch.id });
    expect(await at(store, SOON_MS).stopExpiredBatches()).toEqual([]);
    expect(await store.findBatch({ project: PROJECT, id: finalizing.batch.id })).toMatchObject({
      status: "finalizing",
      stopReason: null,
    });
  });
}

function testUnheldChunks(open: OpenStore): void {
  test("chunks of stopping batches are closed when their holder is gone, and only those", async () => {
    const { store } = await open();
    await startBatch(store, ["other"]);
    await claimChunk(store, { model: "other" });
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const [silent, alive] = [await claimChunk(store), await claimChunk(store)];
    await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
    expect(await store.closeUnheldChunks()).toBe(0);
    await at(store, SOON_MS).renewLeases({ batches: [], chunks: [alive.lease] }, claimBy("worker"));

    expect(await at(store, AFTER_LEASES_MS).closeUnheldChunks()).toBe(1);
    expect(await store.recordSegmentIfLeased(silent.lease, aSegment())).toBe(false);
    expect(await store.recordSegmentIfLeased(alive.lease, aSegment())).toBe(true);
    expect(await at(store, AFTER_LEASES_MS).claimBatchToFinalize(claimBy("finalizer"))).toBeNull();
    expect(await openRoutes(at(store, AFTER_LEASES_MS))).toEqual(["other"]);
  });

  test("a chunk that is given back by a stopping batch is not for others, but closed", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
    expect(await store.releaseChunkIfLeased(lease)).toBe(true);
    expect(await openRoutes(store)).toEqual([]);
    expect(
      await claimFirst(store, { ...claimBy("worker"), batchId: batch.id, model: "llama" }),
    ).toBeNull();
    expect(await store.closeUnheldChunks()).toBe(1);
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).not.toBeNull();
  });
}
