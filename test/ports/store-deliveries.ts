import { expect, test } from "vitest";
import type { BatchId, UntrustedId } from "../../src/batch/batch.ts";
import { CANCELLED, type DeliveryOrder } from "../../src/batch/delivery.ts";
import type { NewDelivery } from "../../src/store/deliveries.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aDelivery,
  BUCKET,
  CLAIM,
  claimed,
  claimOne,
  completedBatch,
  DOWN,
  dueDelivery,
  find,
  HOUR_MS,
  ids,
  scoped,
} from "../support/delivery-builders.ts";
import {
  aBatch,
  aFailure,
  aFile,
  aPlan,
  aReceipt,
  at,
  claimBy,
  claimToFinalize,
  finishBatch,
  insertBatch,
  insertFile,
  LEASE_TTL_MS,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

export function testDeliveries(open: OpenStore): void {
  testCreated(open);
  testAsked(open);
  testFiles(open);
}

/** The ways in which a batch that waits for its delivery ends. */
const ENDINGS: Record<string, (store: Store, batchId: BatchId) => Promise<unknown>> = {
  completed: async (store, batchId) => {
    await start(store);
    await store.closeChunkIfLeased((await claimChunkOf(store, batchId)).lease, null);
    return finishBatch(store, await claimToFinalize(store));
  },
  cancelled: async (store, batchId) => {
    await store.cancelBatchIfOpen(scoped(batchId));
    return finishBatch(store, await claimToFinalize(store));
  },
  failed: async (store) => {
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    return store.failBatchIfLeased(validation!.lease, aFailure());
  },
};

async function start(store: Store) {
  const validation = await store.claimBatchToValidate(claimBy("validator"));
  await store.startBatchIfLeased(validation!.lease, aPlan());
}

async function claimChunkOf(store: Store, batchId: BatchId) {
  const wanted = [{ batchId, model: "llama", count: 1 }];
  const [chunk] = await store.claimChunks({ ...claimBy("worker"), wanted });
  return chunk!;
}

async function batchWithDelivery(store: Store, delivery: NewDelivery) {
  const input = aFile();
  const batch = aBatch({ inputFileId: input.id });
  await insertFile(store, input);
  await store.insertBatch(batch, { deliveries: [delivery] });
  return batch;
}

function testCreated(open: OpenStore): void {
  for (const [status, end] of Object.entries(ENDINGS)) {
    test(`a delivery that a batch was created with waits until the batch is ${status}`, async () => {
      const { store } = await open();
      const delivery = aDelivery({ credentials: "sealed", location: null, s3: BUCKET });
      const batch = await batchWithDelivery(store, delivery);
      expect(await find(store, batch, delivery)).toMatchObject({
        status: "pending",
        dueAtMs: null,
        nextAttemptAtMs: null,
        s3: BUCKET,
      });
      expect(await claimed(store)).toEqual([]);
      await end(store, batch.id);
      const due = await claimed(store);
      if (status === "failed") {
        expect(due).toEqual([]);
        expect(await find(store, batch, delivery)).toMatchObject({
          status: "failed",
          error: { code: "batch_failed" },
          endedAtMs: NOW_MS,
        });
      } else {
        expect(due).toMatchObject([
          {
            delivery: { id: delivery.id, dueAtMs: NOW_MS },
            batch: { status },
            credentials: "sealed",
          },
        ]);
      }
    });
  }

  test("a delivery to a place that the batch has already is refused with the batch", async () => {
    const { store } = await open();
    const batch = aBatch();
    const deliveries = [aDelivery(), aDelivery()];
    await expect(store.insertBatch(batch, { deliveries })).rejects.toThrow();
    expect(await store.findBatch(scoped(batch.id))).toBeNull();
  });
}

function testAsked(open: OpenStore): void {
  test("a delivery is refused while its batch runs, when it failed, and for another project", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const insert = (asked = scoped(batch.id)) => store.insertDeliveryIfFinal(asked, aDelivery());
    expect(await insert()).toEqual({ kind: "no_results", status: "in_progress" });
    expect(await insert(scoped(batch.id, "other"))).toEqual({ kind: "no_batch" });
    const failing = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    await store.failBatchIfLeased(validation!.lease, aFailure());
    expect(await insert(scoped(failing.batch.id))).toEqual({
      kind: "no_results",
      status: "failed",
    });
  });

  test("of many that ask at once for one place, one gets its delivery; another place is free", async () => {
    const { store } = await open();
    const { batch } = await completedBatch(store);
    const insert = (order: Partial<DeliveryOrder> = {}) =>
      store.insertDeliveryIfFinal(scoped(batch.id), aDelivery(order));
    const kinds = await Promise.all(Array.from({ length: 8 }, () => insert()));
    expect(kinds.filter(({ kind }) => kind === "stored")).toHaveLength(1);
    expect(kinds.filter(({ kind }) => kind === "under_way")).toHaveLength(7);
    expect(await insert({ location: "lake" })).toEqual({ kind: "stored" });
    const { lease } = await claimOne(store);
    expect(await insert()).toEqual({ kind: "under_way" });
    await store.endDeliveryIfLeased(lease, { status: "delivered", address: "there" });
    expect(await insert()).toEqual({ kind: "stored" });
  });

  test("the receipt of a delivery is stored with it, or neither", async () => {
    const { store } = await open();
    const { batch } = await completedBatch(store);
    const insert = () => store.insertDeliveryIfFinal(scoped(batch.id), aDelivery(), aReceipt());
    await expect(insert()).rejects.toThrow();
    expect(
      (await store.listDeliveries({ batch: scoped(batch.id), limit: 9, after: null }))?.data,
    ).toEqual([]);
    await store.claimIdempotencyKey(PROJECT, "key-1", { owner: "somebody", ttlMs: 1_000 });
    expect(await insert()).toEqual({ kind: "stored" });
    const again = await store.claimIdempotencyKey(PROJECT, "key-1", CLAIM);
    expect(again.kind).toBe("answered");
  });

  test("the history has the newest first, page by page, and is of one batch of one project", async () => {
    const { store } = await open();
    const { batch } = await completedBatch(store);
    const other = await dueDelivery(store);
    const made = ["a", "b", "c"].map((location) => aDelivery({ location }));
    for (const each of made) await store.insertDeliveryIfFinal(scoped(batch.id), each);
    const list = (after: string | null = null, project = PROJECT) =>
      store.listDeliveries({
        batch: scoped(batch.id, project),
        limit: 2,
        after: after as UntrustedId<"delivery">,
      });
    const first = await list();
    expect([ids(first!.data), first!.hasMore]).toEqual([[made[2]!.id, made[1]!.id], true]);
    const second = await list(made[1]!.id);
    expect([ids(second!.data), second!.hasMore]).toEqual([[made[0]!.id], false]);
    expect(await list(other.delivery.id)).toBeNull();
    expect((await list(null, "other"))?.data).toEqual([]);
    expect(await store.findDelivery(scoped(batch.id, "other"), made[0]!.id)).toBeNull();
    expect(await store.findDelivery(scoped(other.batch.id), made[0]!.id)).toBeNull();
    expect(await store.findDelivery(scoped(batch.id), made[0]!.id)).toMatchObject({
      id: made[0]!.id,
      location: "a",
      status: "pending",
      attemptCount: 0,
      dueAtMs: NOW_MS,
    });
  });

  test("a delivery that waits and has left nothing is cancelled at once, for its own project", async () => {
    const { store } = await open();
    const { batch, delivery } = await dueDelivery(store, { credentials: "sealed" });
    const cancel = (project = PROJECT) =>
      store.cancelDeliveryIfOpen(scoped(batch.id, project), delivery.id);
    expect(await cancel("other")).toBeNull();
    expect(await cancel()).toBe("ended");
    expect(await cancel()).toBeNull();
    expect(await find(store, batch, delivery)).toMatchObject({
      status: "failed",
      error: CANCELLED,
      endedAtMs: NOW_MS,
    });
    expect(await claimed(at(store, NOW_MS + HOUR_MS))).toEqual([]);
  });

  test("the holder of a delivery learns that it is cancelled, and may still have delivered it", async () => {
    const { store } = await open();
    const { batch, delivery } = await dueDelivery(store);
    const cancel = () => store.cancelDeliveryIfOpen(scoped(batch.id), delivery.id);
    const { lease } = await claimOne(store);
    expect(await store.renewDeliveryIfLeased(lease, LEASE_TTL_MS)).toBe("renewed");
    expect([await cancel(), await cancel()]).toEqual(["asked", "asked"]);
    expect(await find(store, batch, delivery)).toMatchObject({
      status: "delivering",
      error: CANCELLED,
      endedAtMs: null,
    });
    expect(await store.renewDeliveryIfLeased(lease, LEASE_TTL_MS)).toBe("cancelled");
    const later = { ms: 5, withinMs: HOUR_MS, error: DOWN };
    expect(await store.postponeDeliveryIfLeased(lease, later)).toBe("cancelled");
    await store.endDeliveryIfLeased(lease, { status: "delivered", address: "there" });
    expect(await find(store, batch, delivery)).toMatchObject({ status: "delivered", error: null });
  });

  test("a cancelled delivery that has left something is due at once, for a runner that cleans up", async () => {
    const { store } = await open();
    const { batch, delivery } = await dueDelivery(store, { credentials: "sealed" });
    const { lease } = await claimOne(store);
    await store.saveDeliveryProgressIfLeased(lease, "half");
    await store.postponeDeliveryIfLeased(lease, { ms: 5, withinMs: HOUR_MS, error: DOWN });
    expect(await claimed(store)).toEqual([]);
    expect(await store.cancelDeliveryIfOpen(scoped(batch.id), delivery.id)).toBe("asked");
    expect(await claimOne(store)).toMatchObject({
      delivery: { error: CANCELLED },
      credentials: "sealed",
      progress: "half",
    });
  });
}

function testFiles(open: OpenStore): void {
  test("the bytes of a deleted result stay until its delivery has ended", async () => {
    const { store } = await open();
    const { output, error } = await dueDelivery(store);
    for (const { id } of [output, error]) await store.deleteFileIfPresent({ project: PROJECT, id });
    expect(await store.listUnusedFiles(10)).toEqual([]);
    const { lease, ...files } = await claimOne(store);
    expect([files.output, files.error]).toEqual([output, error]);
    expect(await store.listUnusedFiles(10)).toEqual([]);
    await store.endDeliveryIfLeased(lease, { status: "failed", error: DOWN });
    expect(ids(await store.listUnusedFiles(10))).toEqual([output.id, error.id]);
  });

  test("a batch whose result was deleted has nothing to deliver any more", async () => {
    const { store } = await open();
    const { batch, error } = await completedBatch(store);
    await store.deleteFileIfPresent({ project: PROJECT, id: error.id });
    expect(await store.insertDeliveryIfFinal(scoped(batch.id), aDelivery())).toEqual({
      kind: "files_deleted",
    });
  });
}
