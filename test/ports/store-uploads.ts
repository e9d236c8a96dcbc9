import { expect, test } from "vitest";
import type { Store } from "../../src/store/store.ts";
import type { Upload, UploadPart } from "../../src/store/uploads.ts";
import {
  aFile,
  anUpload,
  aPart,
  at,
  completeUpload,
  insertFile,
  insertPart,
  NOW_MS,
  PROJECT,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const SOON_MS = NOW_MS + 10;

async function insertUpload(store: Store, fields: Partial<Upload> = {}): Promise<Upload> {
  const upload = anUpload(fields);
  await store.insertUpload(upload);
  return upload;
}

async function addPart(store: Store, upload: Upload): Promise<UploadPart> {
  const part = aPart(upload);
  if (!(await insertPart(store, part))) throw new Error("the upload is not open");
  return part;
}

async function partsOf(store: Store, id: Upload["id"]): Promise<readonly UploadPart[]> {
  const parts: UploadPart[] = [];
  for await (const page of store.partPages(id)) parts.push(...page);
  return parts;
}

/** Adds a part of 10 bytes where the project may have 25. */
async function addBoundedPart(store: Store, upload: Upload): Promise<boolean> {
  const part = aPart(upload, { bytes: 10 });
  await store.declareBlobs([part.blobKey], 60_000);
  const limit = { project: PROJECT, quotas: { storedBytes: 25 } };
  return (await store.insertPartIfPending(part, limit)) === "stored";
}

/** The ways in which an upload ends; each begins with one that has time until `SOON_MS`. */
const ENDINGS: Record<string, (store: Store, upload: Upload) => Promise<void>> = {
  completed: async (store, upload) => void (await completeUpload(store, { upload, file: aFile() })),
  cancelled: async (store, { id }) =>
    void (await store.cancelUploadIfPending({ project: PROJECT, id })),
  expired: async (store) => void (await at(store, SOON_MS).expireUploads()),
};

export function testUploads(open: OpenStore): void {
  test("parts count as stored bytes of their project until the upload ends, and exactly", async () => {
    const { store } = await open();
    const upload = await insertUpload(store);
    const other = await insertUpload(store, { project: "other" });
    await insertPart(store, aPart(other, { bytes: 1_000 }));
    const added = await Promise.allSettled(
      Array.from({ length: 20 }, () => addBoundedPart(store, upload)),
    );
    expect(added.filter(({ status }) => status === "fulfilled")).toHaveLength(2);
    expect(added.find(({ status }) => status === "rejected")).toMatchObject({
      reason: { quota: "stored_bytes", limit: 25 },
    });
    await store.cancelUploadIfPending({ project: PROJECT, id: upload.id });
    expect(await addBoundedPart(store, await insertUpload(store))).toBe(true);
  });

  testParts(open);
  testCompletion(open);
  testEnding(open);
  testTidying(open);

  test("an upload is found as it was stored", async () => {
    const { store } = await open();
    const upload = anUpload({
      filename: "Grüße ☃.jsonl",
      bytes: 8 * 2 ** 30,
      fileExpiresAfterSeconds: 3_600,
    });
    await store.insertUpload(upload);
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual(upload);
  });

  test("an upload of one project does not exist for another", async () => {
    const { store } = await open();
    const upload = await insertUpload(store, { project: "search" });
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toBeNull();
    expect(await store.cancelUploadIfPending({ project: PROJECT, id: upload.id })).toBe(false);
    expect(await store.findUpload({ project: "search", id: upload.id })).toEqual(upload);
  });

  const impossible: [string, Partial<Upload>][] = [
    ["a completed upload without a file", { status: "completed" }],
    ["a pending upload that has a file", { fileId: aFile().id }],
    ["a status that does not exist", { status: "paused" as Upload["status"] }],
    ["fewer bytes than none", { bytes: -1 }],
  ];
  for (const [what, fields] of impossible) {
    test(`the database itself refuses ${what}`, async () => {
      const { store } = await open();
      const upload = anUpload(fields);
      await expect(store.insertUpload(upload)).rejects.toThrow();
      expect(await store.findUpload({ project: PROJECT, id: upload.id })).toBeNull();
    });
  }
}

function testParts(open: OpenStore): void {
  test("parts that arrive side by side are all kept, each with its own upload", async () => {
    const { store } = await open();
    const [upload, other] = [await insertUpload(store), await insertUpload(store)];
    const parts = Array.from({ length: 10 }, () => aPart(upload));
    const stored = await Promise.all(
      [...parts, aPart(other)].map((part) => insertPart(store, part)),
    );
    expect(stored).toEqual(stored.map(() => true));
    const listed = await partsOf(store, upload.id);
    expect(listed).toHaveLength(parts.length);
    expect(listed).toEqual(expect.arrayContaining(parts));
  });

  test("parts are listed in the order of their arrival, also after a restart", async () => {
    const opened = await open();
    const upload = await insertUpload(opened.store);
    expect(await partsOf(opened.store, upload.id)).toEqual([]);
    const parts: UploadPart[] = [];
    for (let i = 0; i < 3; i++) parts.push(await addPart(opened.store, upload));
    const store = await opened.reopen();
    expect(await partsOf(store, upload.id)).toEqual(parts);
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual(upload);
  });

  test("an upload takes parts exactly until its time is over, marked or not", async () => {
    const { store } = await open();
    const upload = await insertUpload(store, { expiresAtMs: SOON_MS });
    const part = aPart(upload);
    expect(await insertPart(at(store, SOON_MS), part)).toBe(false);
    expect(await partsOf(store, upload.id)).toEqual([]);
    expect(await insertPart(at(store, SOON_MS - 1), part)).toBe(true);
  });

  test("an upload that does not exist takes no part", async () => {
    const { store } = await open();
    const part = aPart(anUpload());
    expect(await insertPart(store, part)).toBe(false);
    expect(await store.revokeIntentIfDeclared(part.blobKey)).toBe(true);
    expect(await store.findGarbage([part.blobKey])).toEqual([part.blobKey]);
  });

  for (const [status, end] of Object.entries(ENDINGS)) {
    test(`an upload that is ${status} takes no more parts`, async () => {
      const { store } = await open();
      const upload = await insertUpload(store, { expiresAtMs: SOON_MS });
      const before = await addPart(store, upload);
      await end(store, upload);
      expect(await insertPart(store, aPart(upload))).toBe(false);
      expect(await partsOf(store, upload.id)).toEqual([before]);
    });
  }
}

function testCompletion(open: OpenStore): void {
  test("an upload completes and publishes its file in one step", async () => {
    const { store } = await open();
    const upload = await insertUpload(store);
    const file = aFile();
    expect(await completeUpload(store, { upload, file })).toBe(true);
    expect(await store.findFile({ project: PROJECT, id: file.id })).toEqual(file);
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual({
      ...upload,
      status: "completed",
      fileId: file.id,
    });
  });

  test("an upload whose file cannot be stored stays pending", async () => {
    const { store } = await open();
    const [upload, file] = [await insertUpload(store), aFile()];
    await insertFile(store, file);
    const clash = aFile({ id: file.id });
    await expect(completeUpload(store, { upload, file: clash })).rejects.toThrow();
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual(upload);
    expect(await completeUpload(store, { upload, file: aFile() })).toBe(true);
  });

  test("of two that complete an upload at once, one publishes its file", async () => {
    const { store } = await open();
    const upload = await insertUpload(store);
    const files = [aFile(), aFile()];
    const completed = await Promise.all(
      files.map((file) => completeUpload(store, { upload, file })),
    );
    expect(completed.toSorted()).toEqual([false, true]);
    const winner = files[completed.indexOf(true)];
    const loser = files[completed.indexOf(false)];
    expect((await store.findUpload({ project: PROJECT, id: upload.id }))?.fileId).toBe(winner!.id);
    expect(await store.findFile({ project: PROJECT, id: loser!.id })).toBeNull();
  });

  test("an upload completes exactly until its time is over, marked or not", async () => {
    const { store } = await open();
    const upload = await insertUpload(store, { expiresAtMs: SOON_MS });
    const file = aFile();
    expect(await completeUpload(at(store, SOON_MS), { upload, file })).toBe(false);
    expect(await store.findFile({ project: PROJECT, id: file.id })).toBeNull();
    expect(await completeUpload(at(store, SOON_MS - 1), { upload, file })).toBe(true);
  });
}

function testEnding(open: OpenStore): void {
  test("an upload is cancelled once", async () => {
    const { store } = await open();
    const upload = await insertUpload(store);
    expect(await store.cancelUploadIfPending({ project: PROJECT, id: upload.id })).toBe(true);
    expect(await store.cancelUploadIfPending({ project: PROJECT, id: upload.id })).toBe(false);
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual({
      ...upload,
      status: "cancelled",
    });
  });

  test("uploads expire exactly when their time is over, and once", async () => {
    const { store } = await open();
    const upload = await insertUpload(store, { expiresAtMs: SOON_MS });
    await insertUpload(store, { expiresAtMs: SOON_MS + 1 });
    expect(await at(store, SOON_MS - 1).expireUploads()).toEqual([]);
    expect(await at(store, SOON_MS).expireUploads()).toEqual([upload.id]);
    expect(await at(store, SOON_MS).expireUploads()).toEqual([]);
    expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual({
      ...upload,
      status: "expired",
    });
  });

  for (const [status, end] of Object.entries(ENDINGS)) {
    test(`an upload that is ${status} stays so`, async () => {
      const { store } = await open();
      const upload = await insertUpload(store, { expiresAtMs: SOON_MS });
      await end(store, upload);
      const ended = await store.findUpload({ project: PROJECT, id: upload.id });
      expect(ended?.status).toBe(status);
      expect(await completeUpload(store, { upload, file: aFile() })).toBe(false);
      expect(await store.cancelUploadIfPending({ project: PROJECT, id: upload.id })).toBe(false);
      expect(await at(store, SOON_MS).expireUploads()).toEqual([]);
      expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual(ended);
    });
  }
}

function testTidying(open: OpenStore): void {
  for (const [status, end] of Object.entries(ENDINGS)) {
    test(`the parts of an upload that is ${status} are to be removed, and known until then`, async () => {
      const { store } = await open();
      const upload = await insertUpload(store, { expiresAtMs: SOON_MS });
      const { blobKey } = await addPart(store, upload);
      expect(await store.listUploadsToTidy(10)).toEqual([]);
      await end(store, upload);
      expect(await store.listUploadsToTidy(10)).toEqual([upload.id]);
      expect(await store.findGarbage([blobKey])).toEqual([]);

      const ended = await store.findUpload({ project: PROJECT, id: upload.id });
      await store.forgetParts(upload.id);
      expect(await store.listUploadsToTidy(10)).toEqual([]);
      expect(await partsOf(store, upload.id)).toEqual([]);
      expect(await store.findGarbage([blobKey])).toEqual([blobKey]);
      expect(await store.findUpload({ project: PROJECT, id: upload.id })).toEqual(ended);
    });
  }

  test("uploads to tidy come in limited groups, oldest first, without those that have no parts", async () => {
    const { store } = await open();
    const uploads = [];
    for (let i = 0; i < 3; i++) uploads.push(await insertUpload(store));
    for (const upload of uploads.toReversed()) await addPart(store, upload);
    const empty = await insertUpload(store);
    for (const { id } of [...uploads, empty])
      await store.cancelUploadIfPending({ project: PROJECT, id });
    const ids = uploads.map(({ id }) => id);
    expect(await store.listUploadsToTidy(2)).toEqual(ids.slice(0, 2));
    expect(await store.listUploadsToTidy(10)).toEqual(ids);
    expect(await store.listUploadsToTidy(10, ids[0])).toEqual(ids.slice(1));
  });

  test("the parts of a pending upload cannot be forgotten", async () => {
    const { store } = await open();
    const upload = await insertUpload(store);
    const part = await addPart(store, upload);
    await store.forgetParts(upload.id);
    expect(await partsOf(store, upload.id)).toEqual([part]);
    await store.cancelUploadIfPending({ project: PROJECT, id: upload.id });
    expect(await store.listUploadsToTidy(10)).toEqual([upload.id]);
  });
}
