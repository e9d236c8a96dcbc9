import { expect, test } from "vitest";
import { newBatchId, type ScopedId } from "../../src/batch/batch.ts";
import type { Store } from "../../src/store/store.ts";
import {
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

const scoped = ({ id }: { readonly id: ScopedId<"batch">["id"] }) => ({ project: PROJECT, id });
const paused = (store: Store, batch: { readonly id: ScopedId<"batch">["id"] }) =>
  store.pauseBatchIfOpen(scoped(batch), "requested");

export function testPausing(open: OpenStore): void {
  test("a paused batch gives out no chunk, and is in no list of open work, until it is resumed", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"]);
    await startBatch(store, ["qwen"]);
    const claim = { ...claimBy("worker"), batchId: batch.id, model: "llama" };
    expect(await paused(at(store, SOON_MS), batch)).toBe(true);
    expect(await store.findBatch(scoped(batch))).toMatchObject({
      status: "in_progress",
      paused: { sinceMs: SOON_MS, reason: "requested" },
    });
    expect(await openRoutes(store)).toEqual(["qwen"]);
    expect(await claimFirst(store, claim)).toBeNull();
    const listed = await store.listOpenBatches();
    expect(listed.map(({ work }) => work)).toEqual([[{ model: "qwen", lineCount: 10 }]]);

    expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(true);
    expect((await store.findBatch(scoped(batch)))?.paused).toBeNull();
    expect(await openRoutes(store)).toEqual(["llama", "qwen"]);
    expect(await claimFirst(store, claim)).not.toBeNull();
  });

  test("a batch is paused once and resumed once", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(false);
    expect(await paused(store, batch)).toBe(true);
    expect(await paused(at(store, SOON_MS), batch)).toBe(false);
    expect((await store.findBatch(scoped(batch)))?.paused?.sinceMs).toBe(NOW_MS);
    expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(true);
    expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(false);
  });

  test("a holder learns of a pause with its renewal, keeps its lease, and records what it has", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"]);
    const other = await startBatch(store, ["qwen"]);
    const held = await claimChunk(store);
    const running = await claimChunk(store, { model: "qwen" });
    await paused(store, batch);
    const leases = { batches: [], chunks: [held.lease, running.lease] };
    expect(await store.renewLeases(leases, claimBy("worker"))).toEqual({
      lostBatches: [],
      lostChunks: [],
      stopping: [],
      paused: [batch.id],
      budgets: [],
    });
    expect(await store.recordSegmentIfLeased(held.lease, aSegment({ completed: 4 }))).toBe(true);
    expect(await store.releaseChunkIfLeased(held.lease)).toBe(true);
    expect((await store.findBatch(scoped(batch)))?.counts.completed).toBe(4);
    await store.cancelBatchIfOpen(scoped(other.batch));
    await store.resumeBatchIfPaused(scoped(batch));
    const later = await store.renewLeases({ batches: [], chunks: [running.lease] }, claimBy("w"));
    expect([later.stopping.length, later.paused]).toEqual([1, []]);
  });

  test("a paused batch whose last lines were in flight is finalized", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    await paused(store, batch);
    expect(await store.closeChunkIfLeased(lease, aSegment({ completed: 10 }))).toBe(true);
    expect((await store.findBatch(scoped(batch)))?.status).toBe("finalizing");
    expect(await finishBatch(store, await claimToFinalize(store), NO_RESULT)).toBe(true);
    expect((await store.findBatch(scoped(batch)))?.status).toBe("completed");
  });

  test("a batch that is paused before it is validated is validated, and starts paused", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    expect(await paused(store, batch)).toBe(true);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    expect(await store.startBatchIfLeased(validation!.lease, aPlan())).toBe(true);
    expect(await openRoutes(store)).toEqual([]);
    expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(true);
    expect(await openRoutes(store)).toEqual(["llama"]);
  });

  test("a batch with a sample gives out the chunks of the sample, then pauses, and gives out the others once resumed", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store, { sample: 20 });
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    const plan = { ...aPlan(["llama", "llama", "llama", "qwen"]), sampleChunkCount: 2 };
    expect(await store.startBatchIfLeased(validation!.lease, plan)).toBe(true);
    expect(await openRoutes(store)).toEqual(["llama"]);
    const claim = { ...claimBy("worker"), batchId: batch.id, model: "llama" };
    const one = await claimFirst(store, claim);
    const two = await claimFirst(store, claim);
    expect([one?.chunk.number, two?.chunk.number]).toEqual([0, 1]);
    expect(await claimFirst(store, claim)).toBeNull();
    expect(await store.closeChunkIfLeased(two!.lease, aSegment({ completed: 10 }))).toBe(true);
    expect((await store.findBatch(scoped(batch)))?.paused).toBeNull();
    const last = at(store, SOON_MS);
    expect(await last.closeChunkIfLeased(one!.lease, aSegment({ completed: 10 }))).toBe(true);
    expect(await store.findBatch(scoped(batch))).toMatchObject({
      status: "in_progress",
      sample: 20,
      counts: { completed: 20 },
      paused: { sinceMs: SOON_MS, reason: "sample" },
    });
    expect(await openRoutes(store)).toEqual([]);
    expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(true);
    expect(await openRoutes(store)).toEqual(["llama", "qwen"]);
    const three = await claimFirst(store, claim);
    await store.closeChunkIfLeased(three!.lease, aSegment({ completed: 10 }));
    const four = await claimFirst(store, { ...claim, model: "qwen" });
    await store.closeChunkIfLeased(four!.lease, aSegment({ completed: 10 }));
    expect(await store.findBatch(scoped(batch))).toMatchObject({
      status: "finalizing",
      paused: null,
    });
  });

  test("a batch that is paused while its sample ends waits for the end of its sample to be looked at", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store, { sample: 10 });
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    const plan = { ...aPlan(["llama", "llama"]), sampleChunkCount: 1 };
    await store.startBatchIfLeased(validation!.lease, plan);
    const { lease } = await claimChunk(store);
    await paused(store, batch);
    await at(store, SOON_MS).closeChunkIfLeased(lease, aSegment({ completed: 10 }));
    const { paused: pause } = (await store.findBatch(scoped(batch)))!;
    expect(pause).toEqual({ sinceMs: NOW_MS, reason: "sample" });
  });

  test("a paused batch expires and is cancelled like any other", async () => {
    const { store } = await open();
    const expiring = (await startBatch(store, ["llama"], { expiresAtMs: SOON_MS })).batch;
    const cancelled = (await startBatch(store, ["llama"])).batch;
    await paused(store, expiring);
    await paused(store, cancelled);
    expect(await at(store, SOON_MS).stopExpiredBatches()).toEqual([expiring.id]);
    expect(await store.cancelBatchIfOpen(scoped(cancelled))).toBe(true);
    for (const batch of [expiring, cancelled]) {
      expect(await store.resumeBatchIfPaused(scoped(batch))).toBe(false);
      expect(await finishBatch(store, await claimToFinalize(store), NO_RESULT)).toBe(true);
    }
    const ended = await Promise.all(
      [expiring, cancelled].map((batch) => store.findBatch(scoped(batch))),
    );
    expect(ended.map((batch) => batch?.status)).toEqual(["expired", "cancelled"]);
  });

  test("a batch without lines to send, unknown, or of another project is not paused", async () => {
    const { store } = await open();
    const finalizing = (await finalizingBatch(store)).batch;
    const cancelled = (await insertBatch(store)).batch;
    await store.cancelBatchIfOpen(scoped(cancelled));
    for (const id of [finalizing.id, cancelled.id, newBatchId(NOW_MS)]) {
      expect(await paused(store, { id })).toBe(false);
    }
    const { batch } = await startBatch(store);
    const foreign = { project: "other", id: batch.id };
    expect(await store.pauseBatchIfOpen(foreign, "requested")).toBe(false);
    await paused(store, batch);
    expect(await store.resumeBatchIfPaused(foreign)).toBe(false);
    expect((await store.findBatch(scoped(batch)))?.paused).not.toBeNull();
  });
}
