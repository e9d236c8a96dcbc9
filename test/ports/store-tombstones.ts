import { expect, test } from "vitest";
import { newFileId, type UntrustedId } from "../../src/batch/batch.ts";
import type { NewKey } from "../../src/store/keys.ts";
import { DEFAULT_RULES, DELETION_MS } from "../../src/store/projects.ts";
import type { Store } from "../../src/store/store.ts";
import { TOMBSTONE_KEPT_MS } from "../../src/store/tombstones.ts";
import {
  aBatch,
  aFile,
  at,
  insertFile,
  NOW_MS,
  PROJECT,
  storeClock,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const OTHERS = "another project";
const filesAfter = { project: PROJECT, purpose: null, order: "desc", limit: 10 } as const;

async function threeFiles(store: Store) {
  const [oldest, middle, newest] = [aFile(), aFile(), aFile()];
  for (const file of [oldest, middle, newest]) await insertFile(store, file);
  return { oldest, middle, newest };
}

async function removeFile(store: Store, id: ReturnType<typeof newFileId>) {
  await store.deleteFileIfPresent({ project: PROJECT, id });
  await store.forgetFiles([id]);
}

async function removeBatch(store: Store, id: ReturnType<typeof aBatch>["id"]) {
  await store.deleteBatchIfPresent({ project: PROJECT, id }, { withInput: false });
  await store.forgetBatch(id);
}

const aKey = (number: number): NewKey => ({
  id: `key_${number}` as NewKey["id"],
  name: "nightly",
  project: PROJECT,
  scopes: ["read"],
  createdAtMs: NOW_MS,
  expiresAtMs: null,
  digest: "0".repeat(64),
});

export function testTombstones(open: OpenStore): void {
  test("a removed file keeps its place in both orders, also after a restart", async () => {
    const opened = await open();
    const { oldest, middle, newest } = await threeFiles(opened.store);
    await removeFile(opened.store, middle.id);
    const store = await opened.reopen();
    const page = { ...filesAfter, after: middle.id };
    expect(await store.listFiles(page)).toEqual({ data: [oldest], hasMore: false });
    const ascending = await store.listFiles({ ...page, order: "asc" });
    expect(ascending).toEqual({ data: [newest], hasMore: false });
  });

  test("a removed batch keeps its place", async () => {
    const { store } = await open();
    const [older, newer] = [aBatch(), aBatch()];
    for (const batch of [older, newer]) await store.insertBatch(batch);
    await removeBatch(store, newer.id);
    const page = { project: PROJECT, limit: 10, after: newer.id };
    expect((await store.listBatches(page))?.data.map(({ id }) => id)).toEqual([older.id]);
  });

  test("a deleted key keeps its place, and so does each key of a deleted project", async () => {
    const { store } = await open();
    const keys = [aKey(1), aKey(2), { ...aKey(3), project: OTHERS }];
    for (const key of keys) await store.insertKeyUnlessDeleted(key);
    const idsAfter = async (after: UntrustedId<"key">) =>
      (await store.listKeys({ limit: 10, after }))?.data.map(({ id }) => id);
    await store.deleteKeyIfPresent(keys[1]!.id);
    expect(await idsAfter(keys[1]!.id)).toEqual([keys[0]!.id]);
    await store.beginDeletingProjectIfPresent(OTHERS);
    expect(await idsAfter(keys[2]!.id)).toEqual([keys[0]!.id]);
  });

  test("a deleted project keeps its place, until one of its name is made", async () => {
    const { store } = await open();
    const put = (name: string) =>
      store.putProjectUnlessDeleted({ name, rules: DEFAULT_RULES, createdAtMs: NOW_MS });
    const namesAfter = async (after: string) =>
      (await store.listProjects({ limit: 10, after }))?.data.map(({ name }) => name);
    for (const name of ["a", "b", "c"]) await put(name);
    await store.beginDeletingProjectIfPresent("b");
    storeClock.advance(DELETION_MS);
    await store.purgeProject("b");
    expect(await store.findProject("b")).toBeNull();
    expect(await namesAfter("b")).toEqual(["a"]);
    await put("b");
    expect(await namesAfter("b")).toEqual(["c", "a"]);
  });

  test("the place of a removed object is unknown to all other projects", async () => {
    const { store } = await open();
    const { middle } = await threeFiles(store);
    const batch = aBatch();
    await store.insertBatch(batch);
    await removeFile(store, middle.id);
    await removeBatch(store, batch.id);
    await insertFile(store, aFile({ project: OTHERS }));
    const ofOthers = { ...filesAfter, project: OTHERS };
    expect(await store.listFiles({ ...ofOthers, after: middle.id })).toBeNull();
    expect(await store.listFiles({ ...ofOthers, after: newFileId() })).toBeNull();
    const batchesOfOthers = { project: OTHERS, limit: 10, after: batch.id };
    expect(await store.listBatches(batchesOfOthers)).toBeNull();
  });

  test("a place is kept for a day", async () => {
    const { store } = await open();
    const { oldest, middle } = await threeFiles(store);
    await removeFile(store, middle.id);
    const page = { ...filesAfter, after: middle.id };
    await at(store, NOW_MS + TOMBSTONE_KEPT_MS - 1).forgetTombstones();
    expect(await store.listFiles(page)).toEqual({ data: [oldest], hasMore: false });
    await at(store, NOW_MS + TOMBSTONE_KEPT_MS).forgetTombstones();
    expect(await store.listFiles(page)).toBeNull();
  });
}
