/** Which blobs are garbage, and that garbage never gets a row. */
import { expect, test } from "vitest";
import { segmentKey } from "../../src/store/segment-key.ts";
import {
  AFTER_LEASES_MS,
  aFile,
  anUpload,
  aPart,
  aResult,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertBatch,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const SOON_MS = NOW_MS + 10;

export function testIntents(open: OpenStore): void {
  testSegments(open);

  test("a declared blob is no garbage until its intent runs out and is revoked", async () => {
    const { store } = await open();
    const keys = ["files/a", "parts/b"];
    await store.declareBlobs(keys, 10);
    expect(await at(store, SOON_MS - 1).revokeExpiredIntents(10)).toEqual([]);
    expect(await store.findGarbage(keys)).toEqual([]);
    await store.renewIntents(["parts/b"], 2);
    expect(await at(store, SOON_MS).revokeExpiredIntents(10)).toEqual(["files/a"]);
    expect(await store.findGarbage(keys)).toEqual(["files/a"]);
    await store.renewIntents(keys, 1_000);
    expect(await store.findGarbage(keys)).toEqual(["files/a"]);
  });

  test("intents are revoked in limited groups, those that ran out first", async () => {
    const { store } = await open();
    await store.declareBlobs(["files/late"], 11);
    await store.declareBlobs(["files/early"], 10);
    const later = SOON_MS + 5;
    expect(await at(store, later).revokeExpiredIntents(1)).toEqual(["files/early"]);
    expect(await at(store, later).revokeExpiredIntents(1)).toEqual(["files/late"]);
  });

  test("a file, a part or a result whose intent was revoked is not stored, and changes nothing else", async () => {
    const { store } = await open();
    const file = aFile();
    expect(await store.insertFileIfDeclared(file)).toBe(false);
    const upload = anUpload();
    await store.insertUpload(upload);
    expect(await store.insertPartIfPending(aPart(upload))).toBe("refused");
    expect(await store.completeUploadIfPending(upload, file)).toBe(false);
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual(upload);
    expect(await store.listUploadsToTidy(10)).toEqual([]);

    const { batch } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    const counts = { completed: 10, failed: 0 };
    const result = { ...aResult({ output: file }), counts };
    expect(await store.finishBatchIfLeased(lease, result)).toBe(false);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "finalizing",
    });
    expect(await store.findFile({ project: PROJECT, id: file.id })).toBeNull();
  });

  test("an intent is consumed with its row, and not by a row that was refused", async () => {
    const { store } = await open();
    const file = aFile();
    await store.declareBlobs([file.blobKey], 10);
    const upload = anUpload({ expiresAtMs: NOW_MS });
    await store.insertUpload(upload);
    expect(await store.completeUploadIfPending(upload, file)).toBe(false);
    expect(await store.insertFileIfDeclared(file)).toBe(true);
    expect(await store.revokeIntentIfDeclared(file.blobKey)).toBe(false);
    expect(await store.findGarbage([file.blobKey])).toEqual([]);
  });

  test("the end of a batch also ends the intent of a result file that has no lines", async () => {
    const { store } = await open();
    await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    const output = aFile();
    await store.declareBlobs(["files/unused"], 10);
    const result = aResult({ output, unusedBlobKeys: ["files/unused"] });
    expect(await finishBatch(store, lease, result)).toBe(true);
    for (const key of [output.blobKey, "files/unused"]) {
      expect(await store.revokeIntentIfDeclared(key)).toBe(false);
    }
  });
}

function testSegments(open: OpenStore): void {
  test("a segment without a row is no garbage while its lease is held, however long ago it ran out", async () => {
    const { store } = await open();
    await startBatch(store);
    const { lease } = await claimChunk(store);
    const key = segmentKey(lease, 7);
    expect(await store.findGarbage([key])).toEqual([]);
    const next = await claimChunk(at(store, AFTER_LEASES_MS));
    expect(await store.findGarbage([key])).toEqual([key]);
    expect(await store.recordSegmentIfLeased(lease, aSegment({ blobKey: key }))).toBe(false);
    const own = segmentKey(next.lease, 0);
    await store.releaseChunkIfLeased(next.lease);
    expect(await store.findGarbage([own])).toEqual([own]);
  });

  test("a segment of a closed chunk, or of none, is garbage without a row", async () => {
    const { store } = await open();
    const { segment, lease } = await finalizingBatch(store);
    const stray = segmentKey(lease, 9);
    const unknown = segmentKey({ ...lease, chunkNumber: 99 }, 0);
    const keys = [segment.blobKey, stray, unknown];
    expect(await store.findGarbage(keys)).toEqual([stray, unknown]);
  });

  test("a removed segment takes its counts and its usage along, and only its own", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store);
    const { lease } = await claimChunk(store);
    const usage = {
      inputTokens: 5,
      cachedTokens: 1,
      outputTokens: 3,
      reasoningTokens: 2,
      totalTokens: 8,
    };
    const [kept, lost] = [
      aSegment({ completed: 2, usage }),
      aSegment({ completed: 3, failed: 1, usage }),
    ];
    for (const each of [kept, lost]) await store.recordSegmentIfLeased(lease, each);
    const stale = { ...lease, epoch: lease.epoch - 1 };
    expect(await store.removeSegmentsIfLeased(stale, [lost.blobKey])).toBe(false);
    expect(await store.removeSegmentsIfLeased(lease, [lost.blobKey, lost.blobKey])).toBe(true);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      counts: { total: 10, completed: 2, failed: 0 },
      usage,
    });
    await store.releaseChunkIfLeased(lease);
    expect((await claimChunk(store)).segments).toMatchObject([{ blobKey: kept.blobKey }]);
  });

  test("failures of a chunk are counted until it has a new segment", async () => {
    const { store } = await open();
    await startBatch(store);
    const first = await claimChunk(store);
    expect(first.failureCount).toBe(0);
    expect(await store.countChunkFailureIfLeased(first.lease)).toBe(true);
    const second = await claimChunk(at(store, AFTER_LEASES_MS));
    expect(second.failureCount).toBe(1);
    expect(await store.countChunkFailureIfLeased(first.lease)).toBe(false);
    await store.recordSegmentIfLeased(second.lease, aSegment());
    await store.releaseChunkIfLeased(second.lease);
    expect((await claimChunk(store)).failureCount).toBe(0);
  });

  test("failures of a validation do not count against the finalization", async () => {
    const { store } = await open();
    await insertBatch(store);
    const first = await store.claimBatchToValidate(claimBy("a"));
    await store.countBatchFailureIfLeased(first!.lease);
    const second = await at(store, AFTER_LEASES_MS).claimBatchToValidate(claimBy("a"));
    expect(second?.failureCount).toBe(1);
    await store.releaseBatchIfLeased(second!.lease);
    await finalizingBatch(store);
    expect((await store.claimBatchToFinalize(claimBy("b")))?.failureCount).toBe(0);
  });

  test("a chunk that is incomplete is opened again, and its batch with it", async () => {
    const { store } = await open();
    const { batch, segment, lease: chunk } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    const lost = { chunkNumber: chunk.chunkNumber, lostBlobKeys: [segment.blobKey] };
    expect(await store.reopenChunksIfLeased(lease, [lost])).toBe(true);
    expect(await store.reopenChunksIfLeased(lease, [lost])).toBe(false);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "in_progress",
      finalizingAtMs: null,
      counts: { total: 10, completed: 0, failed: 0 },
    });
    const again = await claimChunk(store);
    expect(again).toMatchObject({ failureCount: 0, segments: [] });
    await store.closeChunkIfLeased(again.lease, aSegment({ completed: 10 }));
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("finalizing");
  });

  test("a batch that was cancelled meanwhile is not opened again", async () => {
    const { store } = await open();
    const { batch } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
    expect(await store.reopenChunksIfLeased(lease, [])).toBe(false);
  });

  test("a batch that ends without results has no files, counts or usage, and says why", async () => {
    const { store } = await open();
    const { batch } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    const faults = [{ code: "internal_error", message: "why", param: null, line: null }] as const;
    const failure = { faults, announcements: [] };
    expect(await store.endWithoutResultsIfLeased(lease, failure)).toBe(true);
    expect(await store.endWithoutResultsIfLeased(lease, failure)).toBe(false);
    expect(await store.findBatch({ project: PROJECT, id: batch.id })).toMatchObject({
      status: "failed",
      failedAtMs: NOW_MS,
      faults,
      counts: { total: 10, completed: 0, failed: 0 },
    });
  });
}
