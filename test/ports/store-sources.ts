import { expect, test } from "vitest";
import type { Batch, BatchSource, StoredFile } from "../../src/batch/batch.ts";
import { ANY_TURN } from "../../src/store/project-turns.ts";
import { type DerivedInput, WAITING_PAGE } from "../../src/store/sources.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aBatch,
  aFile,
  claimBy,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertFile,
  NO_RESULT,
  PROJECT,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

/** Ends a batch with two result files. */
async function endedBatch(store: Store, fields: Partial<Batch> = {}) {
  const { batch } = await finalizingBatch(store, fields);
  const [output, error] = [aFile({ purpose: "batch_output" }), aFile({ purpose: "batch_output" })];
  await store.declareBlobs([output.blobKey, error.blobKey], 60_000);
  await finishBatch(store, await claimToFinalize(store), { ...NO_RESULT, output, error });
  return { batch, output, error };
}

const sourceOf = (batch: Batch, fields: Partial<BatchSource> = {}): BatchSource => ({
  batchId: batch.id,
  lines: "failed",
  isMerged: false,
  merge: null,
  template: null,
  ...fields,
});

/** Stores a batch whose input is to be made of lines of another one. */
async function pendingBatch(store: Store, source: BatchSource, fields: Partial<Batch> = {}) {
  const batch = aBatch({ source, isInputPending: true, ...fields });
  await store.insertBatch(batch);
  return batch;
}

async function anInput(store: Store, { inputFileId, project }: Batch) {
  const id = inputFileId as StoredFile["id"];
  const file = aFile({ id, project, blobKey: `files/${Math.random()}` });
  await store.declareBlobs([file.blobKey], 60_000);
  const input: DerivedInput = {
    file,
    merge: null,
    lineMarks: [],
    defaultModel: "llama",
    quotas: undefined,
  };
  return input;
}

const scoped = ({ id }: Batch) => ({ project: PROJECT, id });

export function testSources(open: OpenStore): void {
  test("a batch waits while its source is open, then its input is published once and it is validated", async () => {
    const { store } = await open();
    const { batch: source, lease } = await finalizingBatch(store).then(async ({ batch }) => ({
      batch,
      lease: await claimToFinalize(store),
    }));
    const template = '{"a":"{{custom_id}}"}';
    const batch = await pendingBatch(store, sourceOf(source, { template }));
    expect(await store.findBatch(scoped(batch))).toEqual(batch);
    expect(await store.claimBatchToDerive(claimBy("a"))).toBeNull();
    expect(await store.claimBatchToValidate(claimBy("a"))).toBeNull();
    await finishBatch(store, lease, NO_RESULT);
    expect(await store.claimBatchToValidate(claimBy("a"))).toBeNull();
    const claimed = (await store.claimBatchToDerive(claimBy("a")))!;
    expect([claimed.batch.id, claimed.failureCount]).toEqual([batch.id, 0]);
    expect(await store.claimBatchToDerive(claimBy("b"))).toBeNull();
    const input = await anInput(store, batch);
    expect(await store.publishInputIfLeased(claimed.lease, input)).toBe("stored");
    expect(await store.publishInputIfLeased(claimed.lease, input)).toBe("lost");
    expect(await store.claimBatchToDerive(claimBy("b"))).toBeNull();
    expect(await store.findBatch(scoped(batch))).toEqual({
      ...batch,
      isInputPending: false,
      defaultModel: "llama",
    });
    const validation = (await store.claimBatchToValidate(claimBy("c")))!;
    expect([validation.batch.id, validation.input]).toEqual([batch.id, input.file]);
    expect(await store.findInput(batch)).toEqual(input.file);
    expect(await store.listRetries([batch.id, source.id])).toEqual([
      { sourceId: source.id, batchId: batch.id },
    ]);
    await store.deleteBatchIfPresent(scoped(batch), { withInput: true });
    expect(await store.listRetries([source.id])).toEqual([]);
    expect(await store.findInput(batch)).toEqual(input.file);
  });

  test("waiting batches hold up no other, however many they are, and projects take turns", async () => {
    const { store } = await open();
    const [{ batch: ended }, { batch: foreign }] = [
      await endedBatch(store),
      await endedBatch(store, { project: "z" }),
    ];
    const openSource = aBatch({ expiresAtMs: Number.MAX_SAFE_INTEGER });
    await store.insertBatch(openSource);
    for (let n = 0; n < WAITING_PAGE + 5; n++) await pendingBatch(store, sourceOf(openSource));
    const first = await pendingBatch(store, sourceOf(ended));
    const second = await pendingBatch(store, sourceOf(ended));
    const others = await pendingBatch(store, sourceOf(foreign), { project: "z" });
    const except = { former: "", except: [PROJECT], isThorough: false };
    const passing = (await store.claimBatchToDerive(claimBy("a"), except))!;
    expect(passing.batch.id).toBe(others.id);
    await store.releaseBatchIfLeased(passing.lease);
    const turns = [];
    for (let project = ""; turns.length < 3; ) {
      const turn = { former: project, except: [], isThorough: false };
      const claimed = (await store.claimBatchToDerive(claimBy("a"), turn))!;
      project = claimed.batch.project;
      turns.push(claimed.batch.id);
    }
    expect(turns).toEqual([first.id, others.id, second.id]);
    expect(await store.claimBatchToDerive(claimBy("a"))).toBeNull();
  });

  test("a thorough look finds a batch whose source is gone and has no mark", async () => {
    const { store } = await open();
    const batch = await pendingBatch(store, sourceOf(aBatch({ id: "batch_gone" as Batch["id"] })));
    const turn = { ...ANY_TURN, isThorough: true };
    expect(await store.claimBatchToDerive(claimBy("a"))).toBeNull();
    expect((await store.claimBatchToDerive(claimBy("a"), turn))?.batch.id).toBe(batch.id);
  });

  test("a deleted source keeps its rows until the batches that wait for it have been told", async () => {
    const { store } = await open();
    const { batch: source } = await endedBatch(store);
    const waiting = await pendingBatch(store, sourceOf(source));
    await store.deleteBatchIfPresent(scoped(source), { withInput: false });
    expect(await store.listDeletedBatches(10)).toEqual([]);
    const { lease, batch } = (await store.claimBatchToDerive(claimBy("a")))!;
    expect(batch.id).toBe(waiting.id);
    expect(await store.claimBatchToDerive(claimBy("b"))).toBeNull();
    expect(await store.listDeletedBatches(10)).toEqual([]);
    await store.failBatchIfLeased(lease, { faults: [], announcements: [] });
    expect(await store.claimBatchToDerive(claimBy("b"))).toBeNull();
    expect(await store.listDeletedBatches(10)).toEqual([source.id]);
    // The next batch that is made of an ended one marks it again.
    const { batch: ended } = await endedBatch(store);
    for (let n = 0; n < 2; n++) {
      const next = await pendingBatch(store, sourceOf(ended));
      const claimed = (await store.claimBatchToDerive(claimBy("a")))!;
      expect(claimed.batch.id).toBe(next.id);
      await store.failBatchIfLeased(claimed.lease, { faults: [], announcements: [] });
      expect(await store.claimBatchToDerive(claimBy("b"))).toBeNull();
    }
  });

  test("a waiting batch is cancelled, expires and is deleted like any other", async () => {
    const { store } = await open();
    const source = aBatch();
    await store.insertBatch(source);
    const cancelled = await pendingBatch(store, sourceOf(source));
    const deleted = await pendingBatch(store, sourceOf(source));
    const expired = await pendingBatch(store, sourceOf(source), { expiresAtMs: 1 });
    expect(await store.cancelBatchIfOpen(scoped(cancelled))).toBe(true);
    expect(await store.deleteBatchIfPresent(scoped(deleted), { withInput: true })).toBe(true);
    expect(await store.stopExpiredBatches()).toEqual([expired.id]);
    await store.deleteBatchIfPresent(scoped(source), { withInput: false });
    expect(await store.claimBatchToDerive(claimBy("a"))).toBeNull();
    expect((await claimToFinalize(store)).batchId).toBe(cancelled.id);
  });

  test("the results that an open batch merges keep their bytes when they are deleted", async () => {
    const { store } = await open();
    const { batch, output, error } = await endedBatch(store);
    const merge = {
      inputFileId: batch.inputFileId,
      outputFileId: output.id,
      errorFileId: error.id,
    };
    const pending = await pendingBatch(store, sourceOf(batch, { lines: "all", isMerged: true }));
    const { lease } = (await store.claimBatchToDerive(claimBy("a")))!;
    const input = { ...(await anInput(store, pending)), merge };
    expect(await store.publishInputIfLeased(lease, input)).toBe("stored");
    for (const { id } of [output, error]) await store.deleteFileIfPresent({ project: PROJECT, id });
    expect(await store.listUnusedFiles(10)).toEqual([]);
    const derived = (await store.findBatch(scoped(pending)))!;
    expect(derived.source?.merge).toEqual(merge);
    expect(await store.findMergedResults(derived)).toEqual({ output, error });
    await store.cancelBatchIfOpen(scoped(derived));
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    for (const { id } of [batch, derived]) await store.forgetChunks(id);
    const unused = await store.listUnusedFiles(10);
    expect(unused.map(({ id }) => id)).toEqual([output.id, error.id]);
  });

  test("nothing is published when the lease, the source, a file of it or the intent is gone, or without room", async () => {
    const { store } = await open();
    const { batch, output, error } = await endedBatch(store);
    const merge = {
      inputFileId: batch.inputFileId,
      outputFileId: output.id,
      errorFileId: error.id,
    };
    const pending = await pendingBatch(store, sourceOf(batch, { isMerged: true }));
    const foreign = await pendingBatch(store, sourceOf(batch), { project: "other" });
    const { lease } = (await store.claimBatchToDerive(claimBy("a")))!;
    const input = { ...(await anInput(store, pending)), merge };
    const stale = { ...lease, epoch: lease.epoch - 1 };
    expect(await store.publishInputIfLeased(stale, input)).toBe("lost");
    await insertFile(store, aFile());
    const quotas = { files: 1, storedBytes: null };
    await expect(store.publishInputIfLeased(lease, { ...input, quotas })).rejects.toMatchObject({
      quota: "files",
    });
    const revoked = { ...(await anInput(store, pending)), merge };
    await store.revokeIntentIfDeclared(revoked.file.blobKey);
    expect(await store.publishInputIfLeased(lease, revoked)).toBe("revoked");
    await store.deleteFileIfPresent({ project: PROJECT, id: error.id });
    expect(await store.publishInputIfLeased(lease, input)).toBe("gone");
    // A batch of another project marks no source.
    const turn = { ...ANY_TURN, isThorough: true };
    const other = (await store.claimBatchToDerive(claimBy("a"), turn))!;
    expect(other.batch.id).toBe(foreign.id);
    const theirs = await anInput(store, foreign);
    expect(await store.publishInputIfLeased(other.lease, theirs)).toBe("gone");
    await store.deleteBatchIfPresent(scoped(batch), { withInput: false });
    expect(await store.publishInputIfLeased(lease, { ...input, merge: null })).toBe("gone");
    expect(await store.findFile({ project: PROJECT, id: input.file.id })).toBeNull();
    expect((await store.findBatch(scoped(pending)))?.isInputPending).toBe(true);
  });
}
