import { expect, test } from "vitest";
import type { Batch } from "../../src/batch/batch.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aBatch,
  aFile,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertFile,
  NO_RESULT,
  PROJECT,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

/** Ends a batch with two result files. */
async function endedBatch(store: Store) {
  const { batch } = await finalizingBatch(store);
  const [output, error] = [aFile({ purpose: "batch_output" }), aFile({ purpose: "batch_output" })];
  await store.declareBlobs([output.blobKey, error.blobKey], 60_000);
  await finishBatch(store, await claimToFinalize(store), { ...NO_RESULT, output, error });
  return { batch, output, error };
}

async function derive(store: Store, fields: Partial<Batch>) {
  const file = aFile();
  await store.declareBlobs([file.blobKey], 60_000);
  const batch = aBatch({ inputFileId: file.id, ...fields });
  return { file, batch, store: () => store.insertDerivedBatch({ batch, file }) };
}

const scoped = ({ id }: Batch) => ({ project: PROJECT, id });

export function testSources(open: OpenStore): void {
  test("a batch made of lines of another is stored with its file, and the source knows it", async () => {
    await using opened = await open();
    const { store } = opened;
    const ended = await endedBatch(store);
    const merge = {
      inputFileId: ended.batch.inputFileId,
      outputFileId: ended.output.id,
      errorFileId: ended.error.id,
    };
    const source = { batchId: ended.batch.id, lines: "failed", merge } as const;
    const derived = await derive(store, { source });
    expect(await derived.store()).toBe("stored");
    expect(await store.findBatch(scoped(derived.batch))).toEqual(derived.batch);
    expect(await store.findFile({ project: PROJECT, id: derived.file.id })).toEqual(derived.file);
    const plain = await derive(store, { source: { ...source, merge: null } });
    expect(await plain.store()).toBe("stored");
    const retries = await store.listRetries([derived.batch.id, ended.batch.id]);
    expect(retries).toEqual(
      [plain.batch.id, derived.batch.id].map((batchId) => ({ sourceId: ended.batch.id, batchId })),
    );
    await store.deleteBatchIfPresent(scoped(plain.batch), { withInput: false });
    expect(await store.listRetries([ended.batch.id])).toHaveLength(1);
  });

  test("the results that an open batch merges keep their bytes when they are deleted", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch, output, error } = await endedBatch(store);
    const merge = {
      inputFileId: batch.inputFileId,
      outputFileId: output.id,
      errorFileId: error.id,
    };
    const derived = await derive(store, { source: { batchId: batch.id, lines: "all", merge } });
    await derived.store();
    for (const { id } of [output, error]) await store.deleteFileIfPresent({ project: PROJECT, id });
    expect(await store.listUnusedFiles(10)).toEqual([]);
    expect(await store.findMergedResults(derived.batch)).toEqual({ output, error });
    await store.cancelBatchIfOpen(scoped(derived.batch));
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    const unused = await store.listUnusedFiles(10);
    expect(unused.map(({ id }) => id)).toEqual([output.id, error.id]);
  });

  test("nothing is stored when the source, a file of it or the intent is gone, or without room", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch, output, error } = await endedBatch(store);
    const merge = {
      inputFileId: batch.inputFileId,
      outputFileId: output.id,
      errorFileId: error.id,
    };
    const source = { batchId: batch.id, lines: "failed", merge } as const;
    const revoked = await derive(store, { source });
    await store.revokeIntentIfDeclared(revoked.file.blobKey);
    expect(await revoked.store()).toBe("revoked");
    const foreign = await derive(store, { source, project: "other" });
    expect(await foreign.store()).toBe("gone");
    const full = await derive(store, { source });
    const quotas = {
      files: 1,
      storedBytes: null,
      openBatches: null,
      tokensPerDay: null,
      costPerMonth: null,
    };
    await insertFile(store, aFile());
    const { batch: made, file } = full;
    await expect(store.insertDerivedBatch({ batch: made, file, quotas })).rejects.toMatchObject({
      quota: "files",
    });
    await store.deleteFileIfPresent({ project: PROJECT, id: error.id });
    const merged = await derive(store, { source });
    expect(await merged.store()).toBe("gone");
    await store.deleteBatchIfPresent(scoped(batch), { withInput: false });
    const late = await derive(store, { source: { ...source, merge: null } });
    expect(await late.store()).toBe("gone");
    const query = { project: PROJECT, limit: 10, after: null };
    expect((await store.listBatches(query))?.data).toEqual([]);
    expect(await store.findFile({ project: PROJECT, id: late.file.id })).toBeNull();
  });
}
