import { expect, test } from "vitest";
import { newFileId, type StoredFile } from "../../src/batch/batch.ts";
import type { FileQuery } from "../../src/store/files.ts";
import {
  aFile,
  anUpload,
  aPart,
  aPlan,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertBatch,
  insertFile,
  insertPart,
  NO_RESULT,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const everything: FileQuery = {
  project: PROJECT,
  purpose: null,
  order: "desc",
  limit: 100,
  after: null,
};

export function testFiles(open: OpenStore): void {
  testLists(open);
  testDeletion(open);
  testExpiry(open);

  test("a file is found as it was stored", async () => {
    const { store } = await open();
    const file = aFile({ filename: "Grüße ☃.jsonl", bytes: 2 ** 40, expiresAtMs: NOW_MS + 1 });
    await insertFile(store, file);
    expect(await store.findFile({ project: PROJECT, id: file.id })).toEqual(file);
  });

  test("a file of one project does not exist for another", async () => {
    const { store } = await open();
    const file = aFile({ project: "search" });
    await insertFile(store, file);
    expect(await store.findFile({ project: PROJECT, id: file.id })).toBeNull();
    expect(await store.deleteFileIfPresent({ project: PROJECT, id: file.id })).toBe(false);
    expect(await store.listFiles(everything)).toEqual({ data: [], hasMore: false });
    expect(await store.listFiles({ ...everything, after: file.id })).toBeNull();
    expect(await store.findFile({ project: "search", id: file.id })).toEqual(file);
  });

  test("two files never share an id", async () => {
    const { store } = await open();
    const file = aFile();
    await insertFile(store, file);
    await expect(insertFile(store, { ...file, blobKey: "files/other" })).rejects.toThrow();
  });

  test("a blob is known while a file, a segment or a part names it", async () => {
    const { store } = await open();
    const { input } = await startBatch(store);
    const { lease } = await claimChunk(store);
    const segment = aSegment();
    await store.recordSegmentIfLeased(lease, segment);
    const upload = anUpload();
    const part = aPart(upload);
    await store.insertUpload(upload);
    await insertPart(store, part);
    const known = [input.blobKey, segment.blobKey, part.blobKey];
    const strays = ["files/stray", "journal/stray", "parts/stray"];
    expect(await store.findGarbage([...known, ...strays])).toEqual(strays);
    expect(await store.findGarbage([])).toEqual([]);
  });

  test("a thousand blob keys are one question", async () => {
    const { store } = await open();
    const file = aFile();
    await insertFile(store, file);
    const strays = Array.from({ length: 1_000 }, (_, i) => `files/stray-${i}`);
    expect(await store.findGarbage([...strays, file.blobKey])).toEqual(strays);
  });
}

function testLists(open: OpenStore): void {
  const ids = (files: readonly StoredFile[] | undefined) => files?.map(({ id }) => id);

  test("files of one millisecond are listed in the order of their creation, either way", async () => {
    const { store } = await open();
    const files = [aFile(), aFile(), aFile(), aFile()];
    for (const file of files) await insertFile(store, file);
    const newestFirst = await store.listFiles(everything);
    const oldestFirst = await store.listFiles({ ...everything, order: "asc" });
    expect(ids(oldestFirst?.data)).toEqual(ids(files));
    expect(newestFirst?.data).toEqual(files.toReversed());
  });

  for (const order of ["asc", "desc"] as const) {
    test(`pages (${order}) follow each other without a gap and say when there is more`, async () => {
      const { store } = await open();
      const files = Array.from({ length: 5 }, () => aFile());
      for (const file of files) await insertFile(store, file);
      const seen: string[] = [];
      const more: boolean[] = [];
      let after: FileQuery["after"] = null;
      do {
        const page = await store.listFiles({ ...everything, order, limit: 2, after });
        seen.push(...(ids(page?.data) ?? []));
        more.push(page?.hasMore ?? false);
        after = page?.data.at(-1)?.id ?? null;
      } while (more.at(-1));
      expect(seen).toEqual(ids(order === "asc" ? files : files.toReversed()));
      expect(more).toEqual([true, true, false]);
    });
  }

  test("a list can be narrowed to one purpose", async () => {
    const { store } = await open();
    const input = aFile();
    const output = aFile({ purpose: "batch_output" });
    for (const file of [input, output, aFile({ purpose: "vision" })]) {
      await insertFile(store, file);
    }
    const query = { ...everything, purpose: "batch_output", after: null } as const;
    expect(await store.listFiles(query)).toEqual({ data: [output], hasMore: false });
    expect(await store.listFiles({ ...query, after: input.id, order: "asc" })).toEqual({
      data: [output],
      hasMore: false,
    });
  });

  test("a cursor that names no file is told from an empty page", async () => {
    const { store } = await open();
    const file = aFile();
    await insertFile(store, file);
    expect(await store.listFiles({ ...everything, after: newFileId() })).toBeNull();
    expect(await store.listFiles({ ...everything, after: file.id })).toEqual({
      data: [],
      hasMore: false,
    });
  });

  test("a script that deletes each page it has read sees every file", async () => {
    const { store } = await open();
    const files = [aFile(), aFile(), aFile()];
    for (const file of files) await insertFile(store, file);
    const [first, second] = files;
    const page = { ...everything, order: "asc", limit: 1 } as const;
    await store.deleteFileIfPresent({ project: PROJECT, id: first!.id });
    const next = await store.listFiles({ ...page, after: first!.id });
    expect(next).toEqual({ data: [second], hasMore: true });
  });
}

function testDeletion(open: OpenStore): void {
  test("a deleted file is gone at once, and only once", async () => {
    const { store } = await open();
    const file = aFile();
    await insertFile(store, file);
    expect(await store.deleteFileIfPresent({ project: PROJECT, id: file.id })).toBe(true);
    expect(await store.findFile({ project: PROJECT, id: file.id })).toBeNull();
    expect(await store.listFiles(everything)).toEqual({ data: [], hasMore: false });
    expect(await store.deleteFileIfPresent({ project: PROJECT, id: file.id })).toBe(false);
    expect(await store.deleteFileIfPresent({ project: PROJECT, id: newFileId() })).toBe(false);
  });

  test("a deleted file is unused until it is forgotten, and then its blob is unknown", async () => {
    const { store } = await open();
    const [kept, first, second] = [aFile(), aFile(), aFile()];
    for (const file of [kept, first, second]) await insertFile(store, file);
    await store.deleteFileIfPresent({ project: PROJECT, id: first.id });
    await store.deleteFileIfPresent({ project: PROJECT, id: second.id });
    expect(await store.listUnusedFiles(10)).toEqual([first, second]);
    expect(await store.listUnusedFiles(1)).toEqual([first]);
    expect(await store.listUnusedFiles(10, first.id)).toEqual([second]);
    expect(await store.findGarbage([first.blobKey])).toEqual([]);

    await store.forgetFiles([first.id]);
    for (const after of [undefined, first.id]) {
      expect(await store.listUnusedFiles(10, after)).toEqual([second]);
    }
    expect(await store.findGarbage([first.blobKey])).toEqual([first.blobKey]);
  });

  test("a file that is not deleted cannot be forgotten", async () => {
    const { store } = await open();
    const file = aFile();
    await insertFile(store, file);
    await store.forgetFiles([file.id]);
    expect(await store.findFile({ project: PROJECT, id: file.id })).toEqual(file);
  });

  test("a batch that waits for validation does not keep its deleted input", async () => {
    const { store } = await open();
    const { input } = await insertBatch(store);
    await store.deleteFileIfPresent({ project: PROJECT, id: input.id });
    expect(await store.listUnusedFiles(10)).toEqual([input]);
  });

  test("a replica that validates a batch keeps its deleted input, through the start to the end", async () => {
    const { store } = await open();
    const { input, batch } = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    await store.deleteFileIfPresent({ project: PROJECT, id: input.id });
    expect(await store.listUnusedFiles(10)).toEqual([]);

    await store.startBatchIfLeased(validation!.lease, aPlan());
    expect(await store.listUnusedFiles(10)).toEqual([]);
    const chunk = await claimChunk(store);
    expect(chunk.inputBlobKey).toBe(input.blobKey);

    await store.closeChunkIfLeased(chunk.lease, null);
    expect(await store.listUnusedFiles(10)).toEqual([]);
    const finalization = await store.claimBatchToFinalize(claimBy("finalizer"));
    expect(finalization?.input).toEqual(input);

    await finishBatch(store, finalization!.lease, NO_RESULT);
    await store.forgetChunks(batch.id);
    expect(await store.listUnusedFiles(10)).toEqual([input]);
    await store.forgetFiles([input.id]);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.inputFileId).toBe(input.id);
  });

  test("one open batch is enough to keep an input that others have finished with", async () => {
    const { store } = await open();
    const { input } = await finalizingBatch(store);
    await finishBatch(store, await claimToFinalize(store), NO_RESULT);
    await startBatch(store, ["llama"], { inputFileId: input.id });
    await store.deleteFileIfPresent({ project: PROJECT, id: input.id });
    expect(await store.listUnusedFiles(10)).toEqual([]);
  });
}

function testExpiry(open: OpenStore): void {
  const SOON_MS = NOW_MS + 10;

  test("an expired file vanishes from lists at once, and its page is filled with others", async () => {
    const { store } = await open();
    const [kept, expiring, forever] = [
      aFile({ expiresAtMs: SOON_MS + 1 }),
      aFile({ expiresAtMs: SOON_MS }),
      aFile(),
    ];
    for (const file of [kept, expiring, forever]) await insertFile(store, file);
    const page = { ...everything, limit: 2 };
    expect(await at(store, SOON_MS - 1).listFiles(page)).toEqual({
      data: [forever, expiring],
      hasMore: true,
    });
    const remaining = { data: [forever, kept], hasMore: false };
    expect(await at(store, SOON_MS).listFiles(page)).toEqual(remaining);
    const ofPurpose = { ...page, purpose: "batch" } as const;
    expect(await store.listFiles(ofPurpose)).toEqual(remaining);
  });

  test("a file that expires between two pages still marks its place", async () => {
    const { store } = await open();
    const [older, expiring] = [aFile(), aFile({ expiresAtMs: SOON_MS })];
    for (const file of [older, expiring]) await insertFile(store, file);
    const next = { ...everything, after: expiring.id };
    const rest = { data: [older], hasMore: false };
    expect(await at(store, SOON_MS).listFiles(next)).toEqual(rest);
    await at(store, SOON_MS).deleteExpiredFiles();
    expect(await store.listFiles(next)).toEqual(rest);
  });

  test("files are deleted when their time has come, once, and their blobs are to be removed", async () => {
    const { store } = await open();
    const expired = [aFile({ expiresAtMs: SOON_MS - 1 }), aFile({ expiresAtMs: SOON_MS })];
    const deleted = aFile({ expiresAtMs: SOON_MS });
    const kept = [aFile({ expiresAtMs: SOON_MS + 1 }), aFile()];
    for (const file of [...expired, deleted, ...kept]) await insertFile(store, file);
    await store.deleteFileIfPresent({ project: PROJECT, id: deleted.id });

    const ids = await at(store, SOON_MS).deleteExpiredFiles();
    expect(ids.toSorted()).toEqual(expired.map(({ id }) => id).toSorted());
    expect(await at(store, SOON_MS).deleteExpiredFiles()).toEqual([]);
    for (const { id } of expired) expect(await store.findFile({ project: PROJECT, id })).toBeNull();
    for (const file of kept)
      expect(await store.findFile({ project: PROJECT, id: file.id })).toEqual(file);
    expect(await store.listUnusedFiles(10)).toEqual([...expired, deleted]);
  });

  test("an input that expires while its batch runs is kept to the end of the batch", async () => {
    const { store } = await open();
    const input = aFile({ expiresAtMs: SOON_MS });
    await insertFile(store, input);
    await startBatch(store, ["llama"], { inputFileId: input.id });
    expect(await at(store, SOON_MS).deleteExpiredFiles()).toEqual([input.id]);
    const chunk = await claimChunk(at(store, SOON_MS));
    expect(chunk.inputBlobKey).toBe(input.blobKey);
    await at(store, SOON_MS).closeChunkIfLeased(chunk.lease, null);
    const finalization = await at(store, SOON_MS).claimBatchToFinalize(claimBy("finalizer"));
    expect(finalization?.input).toEqual(input);
    expect(await store.listUnusedFiles(10)).toEqual([]);
    await finishBatch(at(store, SOON_MS), finalization!.lease, NO_RESULT);
    await store.forgetChunks(finalization!.batch.id);
    expect(await store.listUnusedFiles(10)).toEqual([input]);
  });
}
