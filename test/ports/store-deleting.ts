import { expect, test } from "vitest";
import { type Batch, newBatchId, type StoredFile } from "../../src/batch/batch.ts";
import type { Store } from "../../src/store/store.ts";
import {
  AFTER_LEASES_MS,
  aFile,
  anAnnouncement,
  aPlan,
  aResult,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimToFinalize,
  claimWebhookDeliveries,
  finalizingBatch,
  finishBatch,
  insertBatch,
  insertFile,
  NOW_MS,
  openRoutes,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const KEEP_INPUT = { withInput: false };
const NEWEST = { project: PROJECT, limit: 10, after: null };
const ANY_FILE = { project: PROJECT, purpose: null, order: "asc", limit: 10, after: null } as const;

const scoped = ({ id }: Pick<Batch, "id">) => ({ project: PROJECT, id });
const listed = async (store: Store) =>
  (await store.listBatches(NEWEST))?.data.map(({ id }) => id) ?? [];
const filesOf = async (store: Store) =>
  (await store.listFiles(ANY_FILE))?.data.map(({ id }) => id) ?? [];
const unused = async (store: Store) => (await store.listUnusedFiles(10)).map(({ id }) => id);

/** A batch that completed with both files, and waits for a delivery. */
async function completedBatch(store: Store) {
  const { batch, input } = await finalizingBatch(store);
  const output = aFile({ purpose: "batch_output" });
  const error = aFile({ purpose: "batch_output" });
  const announcements = [anAnnouncement()];
  const lease = await claimToFinalize(store);
  await finishBatch(store, lease, aResult({ output, error, announcements }));
  return { batch, input, output, error };
}

export function testDeleting(open: OpenStore): void {
  testEnded(open);
  testOpen(open);
}

function testEnded(open: OpenStore): void {
  test("a deleted batch is gone for clients with its results and its deliveries, and not its input", async () => {
    const { store } = await open();
    const { batch, input, output, error } = await completedBatch(store);
    const other = await completedBatch(store);
    expect(await store.deleteBatchIfPresent(scoped(batch), KEEP_INPUT)).toBe(true);
    expect(await store.findBatch(scoped(batch))).toBeNull();
    expect(await listed(store)).toEqual([other.batch.id]);
    expect(await filesOf(store)).toEqual(
      [input, other.input, other.output, other.error].map(({ id }) => id),
    );
    expect(await unused(store)).toEqual([output.id, error.id]);
    const due = await claimWebhookDeliveries(store, {
      ...claimBy("sender"),
      limit: 10,
      maxLeased: 10,
    });
    expect(due.map(({ batchId }) => batchId)).toEqual([other.batch.id]);
    expect(await store.deleteBatchIfPresent(scoped(batch), KEEP_INPUT)).toBe(false);
    expect(await store.cancelBatchIfOpen(scoped(batch))).toBe(false);
  });

  test("the input goes with its batch when it is asked for, unless another batch reads it", async () => {
    const { store } = await open();
    const { batch, input } = await completedBatch(store);
    await startBatch(store, ["llama"], { inputFileId: input.id });
    expect(await store.deleteBatchIfPresent(scoped(batch), { withInput: true })).toBe(true);
    expect(await store.findFile({ project: PROJECT, id: input.id })).toBeNull();
    expect(await unused(store)).not.toContain(input.id);
  });

  test("its rows go once, as a whole, and no other rows", async () => {
    const opened = await open();
    const { store } = opened;
    const { batch } = await completedBatch(store);
    const other = await finalizingBatch(store);
    await store.forgetBatch(batch.id);
    expect(await listed(store)).toEqual([other.batch.id, batch.id]);
    await store.deleteBatchIfPresent(scoped(batch), KEEP_INPUT);
    expect(await store.listDeletedBatches(10)).toEqual([batch.id]);
    await store.forgetBatch(batch.id);
    await store.forgetBatch(batch.id);
    expect(await store.listDeletedBatches(10)).toEqual([]);
    expect(await store.listBatchesToTidy(10)).toEqual([]);
    expect(await store.listChunkJournals(batch.id)).toEqual([]);
    expect(await store.listChunkJournals(other.batch.id)).toHaveLength(1);
    const reopened = await opened.reopen();
    expect(await listed(reopened)).toEqual([other.batch.id]);
  });

  test("a list goes on behind a batch that was deleted", async () => {
    const { store } = await open();
    const batches = [];
    for (let n = 0; n < 3; n++) batches.push((await insertBatch(store)).batch);
    const [oldest, middle, newest] = batches as [Batch, Batch, Batch];
    await store.deleteBatchIfPresent(scoped(middle), KEEP_INPUT);
    const page = await store.listBatches({ ...NEWEST, after: middle.id });
    expect(page?.data.map(({ id }) => id)).toEqual([oldest.id]);
    expect(await listed(store)).toEqual([newest.id, oldest.id]);
  });

  test("a batch that is unknown, or of another project, is not deleted", async () => {
    const { store } = await open();
    const { batch, output } = await completedBatch(store);
    const foreign = { project: "other", id: batch.id };
    expect(await store.deleteBatchIfPresent(foreign, { withInput: true })).toBe(false);
    const unknown = scoped({ id: newBatchId(NOW_MS) });
    expect(await store.deleteBatchIfPresent(unknown, { withInput: true })).toBe(false);
    expect(await listed(store)).toEqual([batch.id]);
    expect(await filesOf(store)).toContain(output.id);
  });

  test("the input of another project that a batch names is left alone", async () => {
    const { store } = await open();
    const foreign: StoredFile = aFile({ project: "other" });
    await insertFile(store, foreign);
    const { batch } = await insertBatch(store, { inputFileId: foreign.id });
    expect(await store.deleteBatchIfPresent(scoped(batch), { withInput: true })).toBe(true);
    expect(await store.findFile({ project: "other", id: foreign.id })).not.toBeNull();
  });
}

function testOpen(open: OpenStore): void {
  test("an open batch is cancelled, and its rows wait for the holder of its last chunk", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama"]);
    const held = await claimChunk(store);
    expect(await store.deleteBatchIfPresent(scoped(batch), KEEP_INPUT)).toBe(true);
    expect(await openRoutes(at(store, AFTER_LEASES_MS))).toEqual([]);
    const leases = { batches: [], chunks: [held.lease] };
    const renewal = await store.renewLeases(leases, claimBy("worker"));
    expect(renewal.stopping).toEqual([{ batchId: batch.id, reason: "cancelled" }]);
    expect(await store.listDeletedBatches(10)).toEqual([]);
    await store.forgetBatch(batch.id);
    expect(await store.recordSegmentIfLeased(held.lease, aSegment())).toBe(true);
    expect(await store.closeChunkIfLeased(held.lease, aSegment())).toBe(true);
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).toBeNull();
    expect(await store.listDeletedBatches(10)).toEqual([batch.id]);
    await store.forgetBatch(batch.id);
    expect(await store.listDeletedBatches(10)).toEqual([]);
  });

  test("a chunk whose holder is gone does not keep a deleted batch", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    await claimChunk(store);
    await store.deleteBatchIfPresent(scoped(batch), KEEP_INPUT);
    expect(await at(store, AFTER_LEASES_MS).closeUnheldChunks()).toBe(1);
    expect(await store.listDeletedBatches(10)).toEqual([batch.id]);
  });

  test("a validator or a finalizer at work has lost its lease, and ends nothing", async () => {
    const { store } = await open();
    const validated = (await insertBatch(store)).batch;
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    await store.deleteBatchIfPresent(scoped(validated), KEEP_INPUT);
    expect(await store.startBatchIfLeased(validation!.lease, aPlan())).toBe(false);

    const finalized = (await finalizingBatch(store)).batch;
    const lease = await claimToFinalize(store);
    await store.deleteBatchIfPresent(scoped(finalized), KEEP_INPUT);
    const output = aFile({ purpose: "batch_output" });
    const announcements = [anAnnouncement()];
    expect(await finishBatch(store, lease, aResult({ output, announcements }))).toBe(false);
    const renewal = await store.renewLeases({ batches: [lease], chunks: [] }, claimBy("finalizer"));
    expect(renewal.lostBatches).toEqual([lease]);
    expect(await store.claimBatchToFinalize(claimBy("other"))).toBeNull();
    expect(await store.listDeletedBatches(10)).toEqual([validated.id, finalized.id]);
    expect(await store.listDeletedBatches(10, validated.id)).toEqual([finalized.id]);
    expect(await store.findFile({ project: PROJECT, id: output.id })).toBeNull();
  });

  test("a batch whose window is over is deleted while it ends", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"], { expiresAtMs: NOW_MS + 10 });
    await at(store, NOW_MS + 10).stopExpiredBatches();
    expect(await store.deleteBatchIfPresent(scoped(batch), KEEP_INPUT)).toBe(true);
    expect(await store.claimBatchToFinalize(claimBy("finalizer"))).toBeNull();
    await store.forgetBatch(batch.id);
    expect(await store.listDeletedBatches(10)).toEqual([]);
  });
}
