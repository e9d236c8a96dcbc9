import { expect, test } from "vitest";
import {
  AFTER_LEASES_MS,
  aFile,
  aPlan,
  aResult,
  at,
  claimBy,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertBatch,
  NO_RESULT,
  NOW_MS,
  openRoutes,
  PROJECT,
  SETTLED_MS,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

export function testFinalizing(open: OpenStore): void {
  testFinish(open);
  testTidying(open);

  test("only a batch without open chunks is finalized, the oldest first, by one worker", async () => {
    const { store } = await open();
    await startBatch(store, ["qwen"]);
    const first = await finalizingBatch(store);
    const second = await finalizingBatch(store);
    await insertBatch(store);
    const claimed = await store.claimBatchToFinalize(claimBy("a"));
    expect(claimed?.batch).toEqual(await store.findBatch({ project: PROJECT, id: first.batch.id }));
    expect(claimed?.input).toEqual(first.input);
    expect((await store.claimBatchToFinalize(claimBy("b")))?.batch.id).toBe(second.batch.id);
    expect(await store.claimBatchToFinalize(claimBy("c"))).toBeNull();
  });

  test("projects take turns at the end of their batches, however many one of them has", async () => {
    const { store } = await open();
    for (const project of ["many", "many", "many", "zoo", "few", "few"]) {
      const { batch } = await insertBatch(store, { project });
      await store.cancelBatchIfOpen(batch);
    }
    const ofMany = { former: "few", except: ["many"] };
    const first = await store.claimBatchToFinalize(claimBy("a"), ofMany);
    expect(first?.batch.project).toBe("zoo");
    await store.releaseBatchIfLeased(first!.lease);
    const order: string[] = [];
    for (let i = 0; i < 6; i++) {
      const turn = { former: order.at(-1) ?? "", except: [] };
      const claimed = await store.claimBatchToFinalize(claimBy("a"), turn);
      order.push(claimed?.batch.project ?? "none");
    }
    expect(order).toEqual(["few", "many", "zoo", "few", "many", "many"]);
    expect(await store.claimBatchToFinalize(claimBy("a"))).toBeNull();
  });

  test("chunk journals come in the order of the chunks", async () => {
    const { store } = await open();
    const { batch, segment } = await finalizingBatch(store);
    expect(await store.listChunkJournals(batch.id)).toEqual([
      {
        chunk: { batchId: batch.id, ...aPlan().chunks[0] },
        segments: [{ blobKey: segment.blobKey, bytes: segment.bytes, crc32: segment.crc32 }],
      },
    ]);
  });
}

function testFinish(open: OpenStore): void {
  test("a batch completes and publishes its files in one step", async () => {
    const { store } = await open();
    const { batch } = await finalizingBatch(store);
    const before = await store.findBatch({ project: PROJECT, id: batch.id });
    const output = aFile({ purpose: "batch_output", filename: "out.jsonl" });
    const error = aFile({ purpose: "batch_output", filename: "errors.jsonl" });
    const lease = await claimToFinalize(store);
    expect(await finishBatch(store, lease, aResult({ output, error }))).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual({
      ...before,
      status: "completed",
      completedAtMs: NOW_MS,
      outputFileId: output.id,
      errorFileId: error.id,
    });
    expect(await store.findFile({ project: PROJECT, id: output.id })).toEqual(output);
    expect(await store.findFile({ project: PROJECT, id: error.id })).toEqual(error);
  });

  test("an empty file is no file", async () => {
    const { store } = await open();
    const { batch } = await finalizingBatch(store);
    const output = aFile({ purpose: "batch_output" });
    const lease = await claimToFinalize(store);
    await finishBatch(store, lease, aResult({ output }));
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      outputFileId: output.id,
      errorFileId: null,
    });
  });

  test("a batch that shows no files has published none: either both happen or neither", async () => {
    const { store } = await open();
    const { batch, input } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    const output = aFile({ purpose: "batch_output" });
    const clash = aFile({ purpose: "batch_output", id: input.id });
    await expect(finishBatch(store, lease, aResult({ output, error: clash }))).rejects.toThrow();
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("finalizing");
    expect(await store.findFile({ project: PROJECT, id: output.id })).toBeNull();
    expect(await finishBatch(store, lease, NO_RESULT)).toBe(true);
  });

  test("a finalizer that was overtaken publishes nothing", async () => {
    const { store } = await open();
    const { batch } = await finalizingBatch(store);
    const stale = await claimToFinalize(store);
    const current = await claimToFinalize(at(store, AFTER_LEASES_MS));
    const output = aFile({ purpose: "batch_output" });
    expect(await finishBatch(store, stale, aResult({ output }))).toBe(false);
    expect(await store.findFile({ project: PROJECT, id: output.id })).toBeNull();
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("finalizing");
    expect(await finishBatch(store, current, NO_RESULT)).toBe(true);
    expect(await finishBatch(store, current, NO_RESULT)).toBe(false);
  });

  test("a finalizer that gave the batch back publishes nothing, and another may go on", async () => {
    const { store } = await open();
    await finalizingBatch(store);
    const released = await claimToFinalize(store);
    expect(await store.releaseBatchIfLeased(released)).toBe(true);
    expect(await finishBatch(store, released, NO_RESULT)).toBe(false);
    expect(await finishBatch(store, await claimToFinalize(store), NO_RESULT)).toBe(true);
  });

  test("a right to validate is no right to finish", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("a"));
    expect(await finishBatch(store, validation!.lease, NO_RESULT)).toBe(false);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("validating");
  });

  test("a final batch is never claimed again", async () => {
    const { store } = await open();
    await finalizingBatch(store);
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    at(store, AFTER_LEASES_MS);
    expect(await store.claimBatchToFinalize(claimBy("a"))).toBeNull();
    expect(await store.claimBatchToValidate(claimBy("a"))).toBeNull();
    expect(await openRoutes(store)).toEqual([]);
  });
}

function testTidying(open: OpenStore): void {
  test("a final batch is to be tidied until its chunks are forgotten; its counts stay", async () => {
    const { store } = await open();
    const { batch, segment } = await finalizingBatch(store);
    expect(await store.listBatchesToTidy(10)).toEqual([]);
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    at(store, SETTLED_MS);
    expect(await store.listBatchesToTidy(10)).toEqual([batch.id]);

    await store.forgetChunks(batch.id);
    expect(await store.listBatchesToTidy(10)).toEqual([]);
    expect(await store.listChunkJournals(batch.id)).toEqual([]);
    expect(await store.findGarbage([segment.blobKey])).toEqual([segment.blobKey]);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.counts.completed).toBe(10);
  });

  test("batches to tidy come in limited groups, oldest first", async () => {
    const { store } = await open();
    const ids = [];
    for (let i = 0; i < 3; i++) {
      ids.push((await finalizingBatch(store)).batch.id);
      await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    }
    at(store, SETTLED_MS);
    expect(await store.listBatchesToTidy(2)).toEqual(ids.slice(0, 2));
    expect(await store.listBatchesToTidy(2, ids[0])).toEqual(ids.slice(1));
  });

  test("the chunks of an open batch cannot be forgotten", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "qwen"]);
    await store.forgetChunks(batch.id);
    expect(await store.listChunkJournals(batch.id)).toHaveLength(2);
  });
}
