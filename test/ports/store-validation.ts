import { expect, test } from "vitest";
import type { Fault } from "../../src/batch/batch.ts";
import {
  AFTER_LEASES_MS,
  aBatch,
  aFailure,
  aFile,
  aPlan,
  at,
  claimBy,
  claimChunk,
  insertBatch,
  insertFile,
  NOW_MS,
  PROJECT,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const faults: Fault[] = [
  { code: "invalid_json_line", message: "not JSON", param: null, line: 3 },
  { code: "missing_required_parameter", message: "no model", param: "body.model", line: null },
];

export function testValidation(open: OpenStore): void {
  test.each([
    ["enqueued_lines", { enqueuedLines: 25, enqueuedTokens: null }],
    ["enqueued_tokens", { enqueuedLines: null, enqueuedTokens: 25 }],
  ])("of batches that start at once exactly as many do as %s allows", async (quota, quotas) => {
    const { store } = await open();
    const claimed = [];
    for (let i = 0; i < 10; i++) {
      await insertBatch(store);
      claimed.push((await store.claimBatchToValidate(claimBy("a")))!);
    }
    // Each has ten lines of a token.
    const started = await Promise.allSettled(
      claimed.map(({ lease }) => store.startBatchIfLeased(lease, aPlan(), quotas)),
    );
    expect(started.filter(({ status }) => status === "fulfilled")).toHaveLength(2);
    expect(started.find(({ status }) => status === "rejected")).toMatchObject({
      reason: { quota, limit: 25 },
    });
  });

  test("lines that are never sent, as others have their bodies, are no part of what a project has to do", async () => {
    const { store } = await open();
    const quotas = { enqueuedLines: 25, enqueuedTokens: null };
    for (let i = 0; i < 2; i++) {
      await insertBatch(store, { deduplicated: { lineCount: 0, firstLine: null } });
      const { lease } = (await store.claimBatchToValidate(claimBy("a")))!;
      const plan = { ...aPlan(), total: 1_000, duplicates: { lineCount: 990, firstLine: 2 } };
      expect(await store.startBatchIfLeased(lease, plan, quotas)).toBe(true);
    }
  });

  test("batches are validated in the order of their creation, each by one worker", async () => {
    const { store } = await open();
    expect(await store.claimBatchToValidate(claimBy("a"))).toBeNull();
    const first = await insertBatch(store);
    const second = await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    expect(claimed?.batch).toEqual(first.batch);
    expect(claimed?.input).toEqual(first.input);
    expect((await store.claimBatchToValidate(claimBy("b")))?.batch.id).toBe(second.batch.id);
    expect(await store.claimBatchToValidate(claimBy("c"))).toBeNull();
  });

  test("projects take turns in validation, however many batches one of them has", async () => {
    const { store } = await open();
    for (let i = 0; i < 3; i++) await insertBatch(store, { project: "many" });
    for (const project of ["zoo", "few", "few"]) await insertBatch(store, { project });
    const order: string[] = [];
    for (let i = 0; i < 6; i++) {
      const turn = { former: order.at(-1) ?? "", except: [] };
      const claimed = await store.claimBatchToValidate(claimBy("a"), turn);
      order.push(claimed?.batch.project ?? "none");
    }
    expect(order).toEqual(["few", "many", "zoo", "few", "many", "many"]);
  });

  test("projects that may have no more are passed over in validation, also where one of them is next", async () => {
    const { store } = await open();
    for (const project of ["a", "b", "c", "d"]) {
      for (let i = 0; i < 2; i++) await insertBatch(store, { project });
    }
    const next = async (former: string, ...except: string[]) =>
      (await store.claimBatchToValidate(claimBy("a"), { former, except }))?.batch.project;
    expect(await next("", "a", "b")).toBe("c");
    expect(await next("c", "d", "a")).toBe("b");
    expect(await next("d", "b", "c")).toBe("a");
    expect(await next("b", "c", "a", "d")).toBe("b");
    expect(await next("b", "a", "c", "d")).toBeUndefined();
  });

  test("the file of another project is no input, at no step, and is not kept for one", async () => {
    const { store } = await open();
    const input = aFile();
    await insertFile(store, input);
    const batch = aBatch({ project: "other", inputFileId: input.id });
    await store.insertBatch(batch);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    expect(claimed?.batch.id).toBe(batch.id);
    expect(claimed?.input).toBeNull();
    await store.deleteFileIfPresent(input);
    expect(await store.listUnusedFiles(10)).toEqual([expect.objectContaining({ id: input.id })]);
    await store.cancelBatchIfOpen(batch);
    expect((await store.claimBatchToFinalize(claimBy("b")))?.input).toBeNull();
  });

  test("a batch whose input was deleted before validation is claimed without input", async () => {
    const { store } = await open();
    const { input } = await insertBatch(store);
    await store.deleteFileIfPresent({ project: PROJECT, id: input.id });
    expect((await store.claimBatchToValidate(claimBy("a")))?.input).toBeNull();
  });

  test("an input that has expired when its batch is claimed is as good as deleted", async () => {
    const { store } = await open();
    const input = aFile({ expiresAtMs: NOW_MS + 10 });
    await insertFile(store, input);
    for (const _ of ["in time", "too late"]) {
      await store.insertBatch(aBatch({ inputFileId: input.id }));
    }
    const inTime = await at(store, NOW_MS + 9).claimBatchToValidate(claimBy("a"));
    const tooLate = await at(store, NOW_MS + 10).claimBatchToValidate(claimBy("a"));
    expect(inTime?.input).toEqual(input);
    expect(tooLate).toMatchObject({ input: null });
  });

  test("a batch with faults fails and is claimed no more", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    expect(
      await at(store, NOW_MS + 5).failBatchIfLeased(claimed!.lease, aFailure({ faults })),
    ).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual({
      ...batch,
      status: "failed",
      faults,
      failedAtMs: NOW_MS + 5,
    });
    expect(
      await at(store, NOW_MS + 6).failBatchIfLeased(claimed!.lease, aFailure({ faults })),
    ).toBe(false);
    expect(await at(store, NOW_MS + 6).startBatchIfLeased(claimed!.lease, aPlan())).toBe(false);
    expect(await at(store, AFTER_LEASES_MS).claimBatchToValidate(claimBy("a"))).toBeNull();
    expect(await at(store, AFTER_LEASES_MS).claimBatchToFinalize(claimBy("a"))).toBeNull();
    expect(await store.listBatchesToTidy(10)).toEqual([]);
  });

  test("a valid batch starts with all its chunks in one step", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    const plan = aPlan(["llama", "qwen", "llama"]);
    expect(await at(store, NOW_MS + 5).startBatchIfLeased(claimed!.lease, plan)).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual({
      ...batch,
      lineMarks: plan.lineMarks,
      status: "in_progress",
      model: "llama",
      inProgressAtMs: NOW_MS + 5,
      counts: { total: 30, completed: 0, failed: 0 },
    });
    const journals = await store.listChunkJournals(batch.id);
    expect(journals).toEqual(
      plan.chunks.map((chunk) => ({ chunk: { batchId: batch.id, ...chunk }, segments: [] })),
    );
    expect(await at(store, NOW_MS + 6).startBatchIfLeased(claimed!.lease, plan)).toBe(false);
    expect(await at(store, AFTER_LEASES_MS).claimBatchToValidate(claimBy("b"))).toBeNull();
  });

  test("a batch keeps the default model that its plan settles on", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    await store.startBatchIfLeased(claimed!.lease, { ...aPlan(), defaultModel: "qwen" });
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.defaultModel).toBe("qwen");
    const chunk = await claimChunk(store, { owner: "b" });
    expect(chunk.batch.defaultModel).toBe("qwen");
  });

  test("a batch of many chunks starts too", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    const plan = aPlan(Array.from({ length: 6_000 }, () => "llama"));
    await store.startBatchIfLeased(claimed!.lease, plan);
    expect(await store.listChunkJournals(batch.id)).toHaveLength(6_000);
  });

  test("a validator that was overtaken can neither start nor fail the batch", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const stale = await store.claimBatchToValidate(claimBy("a"));
    const current = await at(store, AFTER_LEASES_MS).claimBatchToValidate(claimBy("b"));
    expect(current?.lease.epoch).toBeGreaterThan(stale!.lease.epoch);
    expect(await at(store, AFTER_LEASES_MS).startBatchIfLeased(stale!.lease, aPlan())).toBe(false);
    expect(
      await at(store, AFTER_LEASES_MS).failBatchIfLeased(stale!.lease, aFailure({ faults })),
    ).toBe(false);
    expect(await store.releaseBatchIfLeased(stale!.lease)).toBe(false);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("validating");
    expect(await store.listChunkJournals(batch.id)).toEqual([]);
    expect(await at(store, AFTER_LEASES_MS).startBatchIfLeased(current!.lease, aPlan())).toBe(true);
  });

  test("a validator that gave the batch back cannot write, and anyone may claim it at once", async () => {
    const { store } = await open();
    await insertBatch(store);
    const released = await store.claimBatchToValidate(claimBy("a"));
    expect(await store.releaseBatchIfLeased(released!.lease)).toBe(true);
    expect(await store.releaseBatchIfLeased(released!.lease)).toBe(false);
    expect(await store.startBatchIfLeased(released!.lease, aPlan())).toBe(false);
    const next = await store.claimBatchToValidate(claimBy("b"));
    expect(next?.lease.epoch).toBeGreaterThan(released!.lease.epoch);
  });

  test("a validator that was slow, but not overtaken, loses nothing", async () => {
    const { store } = await open();
    await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("a"));
    const late = AFTER_LEASES_MS + 1;
    expect(await at(store, late).startBatchIfLeased(claimed!.lease, aPlan())).toBe(true);
  });
}
