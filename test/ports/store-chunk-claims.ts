import { expect, test } from "vitest";
import type { Batch } from "../../src/batch/batch.ts";
import type { ClaimedChunk, Segment } from "../../src/store/chunks.ts";
import {
  AFTER_LEASES_MS,
  aPlan,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimFirst,
  insertBatch,
  NOW_MS,
  openRoutes,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const blobOf = ({ blobKey, bytes, crc32 }: Segment): Segment => ({ blobKey, bytes, crc32 });

const A_WORKER = { owner: "worker", ttlMs: 10_000, report: "{}", mayKeepHouse: true };

export function testChunkClaims(open: OpenStore): void {
  test("what can be claimed is listed for each batch and model, with what is needed to choose", async () => {
    const { store } = await open();
    expect(await store.listRunnable()).toEqual([]);
    const one = await startBatch(store, ["qwen", "llama", "qwen"], { project: "a", priority: 7 });
    const two = await startBatch(store, ["llama"], { expiresAtMs: NOW_MS + 1_000 });
    const listed = await store.listRunnable();
    const about = (batch: Batch, model: string) => ({
      batchId: batch.id,
      project: batch.project,
      priority: batch.priority,
      createdAtMs: batch.createdAtMs,
      deadlineAtMs: batch.expiresAtMs,
      model,
      nextLineCount: 10,
      remainingLineCount: batch === one.batch ? 30 : 10,
    });
    expect(listed).toHaveLength(3);
    expect(listed).toEqual(
      expect.arrayContaining([
        about(one.batch, "qwen"),
        about(one.batch, "llama"),
        about(two.batch, "llama"),
      ]),
    );
  });

  test("a model is listed exactly as long as a chunk of it can be claimed", async () => {
    const { store } = await open();
    await startBatch(store, ["qwen", "llama", "qwen", "mistral"]);
    expect(await openRoutes(store)).toEqual(["llama", "mistral", "qwen"]);

    await claimChunk(store, { model: "mistral" });
    await claimChunk(store, { model: "qwen" });
    expect(await openRoutes(store)).toEqual(["llama", "qwen"]);
    const { lease } = await claimChunk(store, { model: "llama" });
    await store.closeChunkIfLeased(lease, null);
    expect(await openRoutes(store)).toEqual(["qwen"]);
    expect(await openRoutes(at(store, AFTER_LEASES_MS))).toEqual(["mistral", "qwen"]);
  });

  test("lines with an answer are not counted as remaining", async () => {
    const { store } = await open();
    await startBatch(store, ["llama", "llama"]);
    const { lease } = await claimChunk(store);
    await store.recordSegmentIfLeased(lease, aSegment({ completed: 3, failed: 1 }));
    expect(await store.listRunnable()).toMatchObject([{ remainingLineCount: 16 }]);
    expect(await store.listOpenBatches()).toMatchObject([
      { remainingLineCount: 16, work: [{ model: "llama", lineCount: 20 }] },
    ]);
  });

  test("lines with the body of an earlier one are not counted as remaining, nor as open", async () => {
    const { store } = await open();
    const duplicates = { lineCount: 480, firstLine: 21 };
    const plan = { ...aPlan(["llama", "llama"]), total: 500, duplicates };
    await insertBatch(store, { deduplicated: { lineCount: 0, firstLine: null } });
    const claimed = await store.claimBatchToValidate(claimBy("validator"));
    await store.startBatchIfLeased(claimed!.lease, plan);
    expect(await store.listRunnable()).toMatchObject([{ remainingLineCount: 20 }]);
    expect(await store.listOpenBatches()).toMatchObject([{ remainingLineCount: 20 }]);
    expect(await store.countOpenWork()).toMatchObject({ lineCount: 20 });
  });

  test("a claimed chunk comes with all that is needed to run it", async () => {
    const { store } = await open();
    const { input, batch } = await startBatch(store, ["qwen", "llama"]);
    const claimed = await claimChunk(store, { model: "llama" });
    expect(claimed).toEqual({
      lease: { batchId: batch.id, chunkNumber: 1, epoch: expect.any(Number) },
      chunk: {
        batchId: batch.id,
        number: 1,
        model: "llama",
        lineCount: 10,
        extents: [{ start: 1_000, end: 2_000, firstLine: 11 }],
      },
      batch: await store.findBatch({ project: PROJECT, id: batch.id }),
      inputBlobKey: input.blobKey,
      failureCount: 0,
      segments: [],
    });
  });

  test("each chunk is claimed by one worker, in order, for the batch and model that it asks for", async () => {
    const { store } = await open();
    const other = await startBatch(store, ["llama"]);
    const { batch } = await startBatch(store, ["llama", "qwen", "llama"]);
    const claim = (owner: string, model: string) =>
      claimFirst(store, { ...claimBy(owner), batchId: batch.id, model });
    const claimed = [await claim("worker", "llama"), await claim("other", "llama")];
    expect(claimed.map((each) => [each?.batch.id, each?.chunk.number])).toEqual([
      [batch.id, 0],
      [batch.id, 2],
    ]);
    expect(await claim("worker", "llama")).toBeNull();
    expect(await claim("worker", "mistral")).toBeNull();
    expect(await store.listRunnable()).toMatchObject([
      { batchId: other.batch.id, model: "llama" },
      { batchId: batch.id, model: "qwen" },
    ]);
  });

  test("one claim takes chunks of several batches and models, as many as are wanted of each", async () => {
    const { store } = await open();
    const one = await startBatch(store, ["llama", "qwen", "llama", "llama"]);
    const two = await startBatch(store, ["llama"]);
    const over = await startBatch(store, ["llama"], { expiresAtMs: NOW_MS });
    const wanted = [
      { batchId: one.batch.id, model: "llama", count: 2 },
      { batchId: one.batch.id, model: "qwen", count: 3 },
      { batchId: two.batch.id, model: "llama", count: 1 },
      { batchId: two.batch.id, model: "mistral", count: 1 },
      { batchId: over.batch.id, model: "llama", count: 1 },
    ];
    const namesOf = (claimed: readonly ClaimedChunk[]) =>
      claimed.map(({ batch, chunk }) => `${batch.id} ${chunk.model} ${chunk.number}`).sort();
    const claimed = await store.claimChunks({ ...claimBy("worker"), wanted });
    expect(namesOf(claimed)).toEqual(
      [
        `${one.batch.id} llama 0`,
        `${one.batch.id} llama 2`,
        `${one.batch.id} qwen 1`,
        `${two.batch.id} llama 0`,
      ].sort(),
    );
    const left = await store.claimChunks({ ...claimBy("other"), wanted });
    expect(namesOf(left)).toEqual([`${one.batch.id} llama 3`]);
    expect(await store.claimChunks({ ...claimBy("other"), wanted: [] })).toEqual([]);
  });

  test("claims of several workers at once share out the chunks, each of them once", async () => {
    const { store } = await open();
    const batches = [];
    for (let n = 0; n < 4; n++) batches.push(await startBatch(store, Array(6).fill("llama")));
    const wanted = batches.map(({ batch }) => ({ batchId: batch.id, model: "llama", count: 2 }));
    const workers = Array.from({ length: 8 }, (_, n) => `worker-${n}`);
    const claims = await Promise.all(
      workers.map((owner) => store.claimChunks({ ...claimBy(owner), wanted })),
    );
    const names = claims.flat().map(({ batch, chunk }) => `${batch.id} ${chunk.number}`);
    expect(new Set(names).size).toBe(names.length);
    // What one worker was about to take, another has passed over.
    const rest = await store.claimChunks({
      ...claimBy("last"),
      wanted: wanted.map((each) => ({ ...each, count: 6 })),
    });
    expect(names.length + rest.length).toBe(24);
  });

  test("chunks that were held before are claimed with their segments, each with its own", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama", "llama", "llama"]);
    const wanted = [{ batchId: batch.id, model: "llama", count: 3 }];
    const [first, second] = await store.claimChunks({
      ...claimBy("worker"),
      wanted: [{ ...wanted[0]!, count: 2 }],
    });
    const segments = [aSegment(), aSegment(), aSegment()];
    await store.recordSegmentIfLeased(first!.lease, segments[0]!);
    await store.recordSegmentIfLeased(second!.lease, segments[1]!);
    await store.recordSegmentIfLeased(second!.lease, segments[2]!);
    const again = await at(store, AFTER_LEASES_MS).claimChunks({ ...claimBy("other"), wanted });
    expect(again.map((each) => each.segments)).toEqual([
      [blobOf(segments[0]!)],
      [blobOf(segments[1]!), blobOf(segments[2]!)],
      [],
    ]);
  });

  test("a chunk is not handed out once the window of its batch is over", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"]);
    const claim = { ...claimBy("worker"), batchId: batch.id, model: "llama" };

    expect(await openRoutes(at(store, batch.expiresAtMs))).toEqual([]);
    expect(await claimFirst(store, claim)).toBeNull();
    expect(await claimFirst(at(store, batch.expiresAtMs - 1), claim)).not.toBeNull();
  });

  test("a batch is open from its creation to its last line, and its chunks are held until their leases run out", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    expect(await store.listOpenBatches()).toEqual([
      {
        batchId: batch.id,
        project: batch.project,
        priority: 0,
        createdAtMs: batch.createdAtMs,
        deadlineAtMs: batch.expiresAtMs,
        isValidated: false,
        heldCount: 0,
        lostCount: 0,
        remainingLineCount: 0,
        work: [],
      },
    ]);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    await store.startBatchIfLeased(validation!.lease, aPlan(["llama"]));
    const open10 = { isValidated: true, work: [{ model: "llama", lineCount: 10 }] };
    expect(await store.listOpenBatches()).toMatchObject([{ ...open10, heldCount: 0 }]);
    await store.renewReplica(A_WORKER, []);
    const { lease } = await claimChunk(store);
    expect(await store.listOpenBatches()).toMatchObject([
      { ...open10, heldCount: 1, lostCount: 0 },
    ]);
    at(store, AFTER_LEASES_MS);
    expect(await store.listOpenBatches()).toMatchObject([{ heldCount: 0, lostCount: 0 }]);
    await store.closeChunkIfLeased(lease, null);
    expect(await store.listOpenBatches()).toEqual([]);
  });
}
