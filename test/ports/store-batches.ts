import { expect, test } from "vitest";
import { type Batch, newBatchId } from "../../src/batch/batch.ts";
import { type BatchFilter, type BatchQuery, FILTER_STEP } from "../../src/store/batches.ts";
import {
  aBatch,
  aFile,
  aSegment,
  claimChunk,
  claimToFinalize,
  finishBatch,
  insertBatch,
  insertFile,
  NO_RESULT,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const everything: BatchQuery = { project: PROJECT, limit: 100, after: null };

export function testBatches(open: OpenStore): void {
  test("a batch is found as it was stored", async () => {
    const { store } = await open();
    const batch = aBatch({
      metadata: { customer: "Grüße ☃", "a.b": "" },
      outputExpiresAfterSeconds: 3_600,
    });
    await store.insertBatch(batch);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual(batch);
  });

  test("a batch of one project does not exist for another", async () => {
    const { store } = await open();
    const batch = aBatch({ project: "search" });
    await store.insertBatch(batch);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toBeNull();
    expect(await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id })).toBe(false);
    expect(await store.listBatches(everything)).toEqual({ data: [], hasMore: false });
    expect(await store.listBatches({ ...everything, after: batch.id })).toBeNull();
    expect(await store.findBatch({ project: "search", id: batch.id })).toEqual(batch);
  });

  test("batches of one millisecond are listed newest first, page by page", async () => {
    const { store } = await open();
    const batches = Array.from({ length: 5 }, () => aBatch());
    for (const batch of batches) await store.insertBatch(batch);
    const seen: Batch[] = [];
    const more: boolean[] = [];
    let after: BatchQuery["after"] = null;
    do {
      const page = await store.listBatches({ ...everything, limit: 2, after });
      seen.push(...(page?.data ?? []));
      more.push(page?.hasMore ?? false);
      after = page?.data.at(-1)?.id ?? null;
    } while (more.at(-1));
    expect(seen).toEqual(batches.toReversed());
    expect(more).toEqual([true, true, false]);
  });

  test("a filtered list has the batches that match, page by page, and no others", async () => {
    const { store } = await open();
    const none: BatchFilter = {
      status: null,
      endpoint: null,
      model: null,
      createdAtOrAfterMs: null,
      metadata: {},
      search: null,
    };
    const metadata = { team: "search", 'a"b\\c.$[0]': "Grüße ☃ 'x'" };
    // The matches lie more than a step of the list apart.
    const old = aBatch({ metadata, model: "llama", endpoint: "/v1/embeddings" });
    await store.insertBatch(old);
    for (let i = 0; i < FILTER_STEP; i += 100) {
      await Promise.all(Array.from({ length: 100 }, () => store.insertBatch(aBatch())));
    }
    const young = aBatch({ metadata, model: "llama", createdAtMs: NOW_MS + 1_000 });
    await store.insertBatch(young);
    const nul = { team: "search\0", "nul\0": "1" };
    await store.insertBatch(aBatch({ metadata: nul, model: "qwen" }));
    const odd = [
      { [String.raw`\u0000`]: "\0", of: "half a pair" },
      { "low \udc00": "\ud800", of: "half a pair" },
    ].map((unreadable) => aBatch({ metadata: unreadable, model: "phi" }));
    for (const batch of odd) await store.insertBatch(batch);
    await store.insertBatch(aBatch({ metadata, model: "llama", project: "other" }));
    const list = async (filter: Partial<BatchFilter>, more: Partial<BatchQuery> = {}) => {
      const query = { ...everything, ...more, filter: { ...none, ...filter } };
      return store.listBatches(query);
    };
    const both = { data: [young, old], hasMore: false };
    expect(await list({ model: "llama" })).toEqual(both);
    expect(await list({ metadata })).toEqual(both);
    expect(await list({ metadata: { team: "search" }, status: "validating" })).toEqual(both);
    expect(await list({ model: "llama" }, { limit: 1 })).toEqual({ data: [young], hasMore: true });
    const second = await list({ model: "llama" }, { limit: 1, after: young.id });
    expect(second).toEqual({ data: [old], hasMore: false });
    expect(await list({ endpoint: "/v1/embeddings" })).toEqual({ data: [old], hasMore: false });
    const later = await list({ metadata, createdAtOrAfterMs: NOW_MS + 1_000 });
    expect(later).toEqual({ data: [young], hasMore: false });
    const nothing = { data: [], hasMore: false };
    expect(await list({ status: "completed" })).toEqual(nothing);
    expect(await list({ metadata: { ...metadata, other: "" } })).toEqual(nothing);
    expect(await list({ metadata: { "team\0": "search" } })).toEqual(nothing);
    for (const [key, value] of Object.entries(nul))
      expect(await list({ metadata: { [key]: value } })).toEqual(nothing);
    expect(await list({ model: "qwen\0" })).toEqual(nothing);
    expect(await list({ search: "GRÜSSE" })).toEqual(nothing);
    expect(await list({ search: "gRüßE ☃ 'X'" })).toEqual(both);
    expect(await list({ search: "SEARCH", endpoint: "/v1/embeddings" })).toEqual({
      data: [old],
      hasMore: false,
    });
    expect(await list({ search: old.id.slice(3) })).toEqual({ data: [old], hasMore: false });
    expect(await list({ search: "search\0" })).toEqual(nothing);
    const onlyOdd = { data: odd.toReversed(), hasMore: false };
    expect(await list({ search: "half a pair" })).toEqual(onlyOdd);
    expect(await list({ metadata: { of: "half a pair" } })).toEqual(onlyOdd);
    for (const wildcard of ["%", "_e_r_h", "s*", "\\", "search' or 1 = 1"]) {
      expect(await list({ search: wildcard }), wildcard).toEqual(nothing);
    }
    expect(await list({ model: "llama" }, { after: newBatchId(NOW_MS) })).toBeNull();
  });

  test("a batch is found by metadata with backslashes that look like escapes of JSON", async () => {
    const { store } = await open();
    const metadata = { path: String.raw`d:\ud800\\u0000`, [String.raw`\udfff`]: "phi" };
    const batch = aBatch({ metadata });
    await store.insertBatch(batch);
    const filter: BatchFilter = {
      ...{ status: null, endpoint: null, model: null, createdAtOrAfterMs: null },
      ...{ metadata: {}, search: null },
    };
    const found = { data: [batch], hasMore: false };
    for (const sought of [{ metadata }, { search: metadata.path }]) {
      const query = { ...everything, filter: { ...filter, ...sought } };
      expect(await store.listBatches(query)).toEqual(found);
    }
  });

  test("no other character finds a NUL or half a pair in metadata, not even the sign for an unreadable one", async () => {
    const { store } = await open();
    const texts = ["x\ufffdy", "x\u{10ff00}y", "x\ud800y", "x\udcffy", "x\0y"];
    const made = texts.map((text) => aBatch({ metadata: { of: text, [text]: "it" } }));
    for (const batch of made) await store.insertBatch(batch);
    const none = { status: null, endpoint: null, model: null, createdAtOrAfterMs: null };
    const found = async (sought: Pick<BatchFilter, "metadata" | "search">) => {
      const filter = { ...none, ...sought };
      return (await store.listBatches({ ...everything, filter }))?.data ?? [];
    };
    for (const [sought, batches] of [
      ["x\ufffdy", made.slice(0, 1)],
      ["x\u{10ff00}y", []],
      ["x\u{10ffff}y", []],
      ["x\0y", []],
    ] as const) {
      expect(await found({ metadata: { of: sought }, search: null })).toEqual(batches);
      expect(await found({ metadata: { [sought]: "it" }, search: null })).toEqual(batches);
      expect(await found({ metadata: {}, search: sought })).toEqual(batches);
    }
  });

  test("a batch is found by the name of its input file, but not of a deleted or foreign one", async () => {
    const { store } = await open();
    const search = "100%_Ünï";
    const [mine, gone, foreign] = [0, 1, 2].map(() => aFile({ filename: `Q1 ${search}.jsonl` }));
    for (const file of [mine, gone, foreign]) {
      await insertFile(store, file === foreign ? { ...file!, project: "other" } : file!);
    }
    const made = [mine, gone, foreign].map((file) => aBatch({ inputFileId: file!.id }));
    for (const batch of made) await store.insertBatch(batch);
    const filter: BatchFilter = {
      status: null,
      endpoint: null,
      model: null,
      createdAtOrAfterMs: null,
      metadata: {},
      search,
    };
    const found = async () => (await store.listBatches({ ...everything, filter }))?.data;
    expect(await found()).toEqual([made[1], made[0]]);
    await store.deleteFileIfPresent({ project: PROJECT, id: gone!.id });
    expect(await found()).toEqual([made[0]]);
  });

  test("a cursor that names no batch is told from an empty page", async () => {
    const { store } = await open();
    const batch = aBatch();
    await store.insertBatch(batch);
    const after = newBatchId(NOW_MS);
    expect(await store.listBatches({ ...everything, after })).toBeNull();
    expect(await store.listBatches({ ...everything, after: batch.id })).toEqual({
      data: [],
      hasMore: false,
    });
  });

  test("a page of no batches still says whether there are any", async () => {
    const { store } = await open();
    const none = { ...everything, limit: 0 };
    expect(await store.listBatches(none)).toEqual({ data: [], hasMore: false });
    await store.insertBatch(aBatch());
    expect(await store.listBatches(none)).toEqual({ data: [], hasMore: true });
  });

  const impossible: [string, Partial<Batch>][] = [
    ["a final status without its time", { status: "failed" }],
    ["a final time without its status", { failedAtMs: NOW_MS }],
    ["a status that does not exist", { status: "paused" as Batch["status"] }],
    ["more lines done than there are", { counts: { total: 1, completed: 1, failed: 1 } }],
    ["a cancelling batch without a reason", { status: "cancelling", cancellingAtMs: NOW_MS }],
    ["a running batch that never started", { status: "in_progress" }],
  ];
  for (const [what, fields] of impossible) {
    test(`the database itself refuses ${what}`, async () => {
      const { store } = await open();
      const batch = aBatch(fields);
      await expect(store.insertBatch(batch)).rejects.toThrow();
      expect(await store.findBatch({ project: PROJECT, id: batch.id })).toBeNull();
    });
  }

  test("open work is counted by status, and what is final or stopping leaves it", async () => {
    const { store } = await open();
    const nothing = { batchCounts: {}, lineCount: 0, firstExpiresAtMs: null };
    expect(await store.countOpenWork()).toEqual(nothing);
    const first = await startBatch(store, ["llama", "qwen"], { expiresAtMs: NOW_MS + 2_000 });
    await startBatch(store, ["llama"], { expiresAtMs: NOW_MS + 3_000 });
    const { lease } = await claimChunk(store);
    await store.recordSegmentIfLeased(lease, aSegment({ completed: 4, failed: 1 }));
    await insertBatch(store, { expiresAtMs: NOW_MS + 4_000 });
    expect(await store.countOpenWork()).toEqual({
      batchCounts: { in_progress: 2, validating: 1 },
      lineCount: 25,
      firstExpiresAtMs: NOW_MS + 2_000,
    });

    const paused = { project: PROJECT, id: first.batch.id };
    await store.pauseBatchIfOpen(paused, "requested");
    expect(await store.countOpenWork()).toEqual({
      batchCounts: { in_progress: 2, validating: 1 },
      lineCount: 10,
      firstExpiresAtMs: NOW_MS + 2_000,
    });
    await store.resumeBatchIfPaused(paused);

    await store.cancelBatchIfOpen({ project: PROJECT, id: first.batch.id });
    expect(await store.countOpenWork()).toEqual({
      batchCounts: { cancelling: 1, in_progress: 1, validating: 1 },
      lineCount: 10,
      firstExpiresAtMs: NOW_MS + 3_000,
    });
    await store.closeChunkIfLeased(lease, null);
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    expect((await store.countOpenWork()).batchCounts).toEqual({ in_progress: 1, validating: 1 });
  });

  test("everything is there again after a restart", async () => {
    const opened = await open();
    const { input, batch } = await startBatch(opened.store, ["llama", "qwen"]);
    const { lease } = await claimChunk(opened.store);
    const segment = aSegment({ completed: 4, failed: 1 });
    await opened.store.recordSegmentIfLeased(lease, segment);
    const before = await opened.store.findBatch({ project: PROJECT, id: batch.id });
    const journals = await opened.store.listChunkJournals(batch.id);

    const store = await opened.reopen();
    expect(await store.findFile({ project: PROJECT, id: input.id })).toEqual(input);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toEqual(before);
    expect(before?.counts).toEqual({ total: 20, completed: 4, failed: 1 });
    expect(await store.listChunkJournals(batch.id)).toEqual(journals);
    expect(journals[0]?.segments).toMatchObject([
      { blobKey: segment.blobKey, bytes: segment.bytes },
    ]);
  });

  test("a store that is closed says that it cannot be used", async () => {
    const { store } = await open();
    await store.ping();
    await store.close();
    await expect(store.ping()).rejects.toThrow();
  });
}
