import { expect, test } from "vitest";

import { rulesFrom } from "../../src/batch/project.ts";
import { ProjectSettings } from "../../src/contract/project.ts";
import type { NewKey } from "../../src/store/keys.ts";
import { DEFAULT_RULES, DELETION_MS } from "../../src/store/projects.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aBatch,
  aFile,
  anUpload,
  insertFile,
  NOW_MS,
  PROJECT,
  storeClock,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const { quotas: NO_QUOTAS } = rulesFrom(DEFAULT_RULES);
const rulesWith = (quotas: object) => ProjectSettings.parse({ quotas });
const aProject = (name: string, rules = DEFAULT_RULES) => ({ name, rules, createdAtMs: NOW_MS });

const aKey = (number = 1) => ({
  id: `key_${number}` as NewKey["id"],
  name: "k",
  digest: "0".repeat(64),
  scopes: ["read" as const],
  createdAtMs: NOW_MS,
  expiresAtMs: null,
});

/** Does the part of the sweep. */
async function forgetDeleted(store: Store): Promise<void> {
  for (const id of await store.listDeletedBatches(10)) await store.forgetBatch(id);
  for (const { id } of await store.listUnusedFiles(10)) await store.forgetFiles([id]);
}

export function testProjects(open: OpenStore): void {
  test("a project has the rules that it was given last, also after a restart, and one that was never made has none", async () => {
    const opened = await open();
    const former = aProject("search", rulesWith({ files: 1 }));
    const rules = rulesWith({ cost_per_month: "100.00", stored_bytes: 5 });
    expect(await opened.store.putProjectUnlessDeleted(former)).toBe(true);
    expect(await opened.store.putProjectUnlessDeleted(aProject("search", rules))).toBe(true);
    const store = await opened.reopen();
    const made = { ...aProject("search", rules), deletedAtMs: null };
    expect(await store.findProject("search")).toEqual(made);
    expect(await store.findProjects()).toEqual([made]);
    expect(await store.findProject("Search")).toBeNull();
  });

  test("projects are listed page by page, newest first, and not after an unknown one", async () => {
    const { store } = await open();
    for (const name of ["a", "b", "c"]) await store.putProjectUnlessDeleted(aProject(name));
    const first = await store.listProjects({ limit: 2, after: null });
    expect([first?.data.map(({ name }) => name), first?.hasMore]).toEqual([["c", "b"], true]);
    const second = await store.listProjects({ limit: 2, after: "b" });
    expect([second?.data.map(({ name }) => name), second?.hasMore]).toEqual([["a"], false]);
    expect(await store.listProjects({ limit: 2, after: "d" })).toBeNull();
  });

  test("a project with more files or bytes than its quotas stores no batch, and one at its quotas does", async () => {
    const { store } = await open();
    for (const project of [PROJECT, PROJECT, "other"]) {
      await insertFile(store, aFile({ project, bytes: 5 }));
    }
    const insertWith = (quotas: object, project = PROJECT) =>
      store.insertBatch(aBatch({ project }), { quotas: { ...NO_QUOTAS, ...quotas } });
    await expect(insertWith({ files: 1 })).rejects.toMatchObject({ quota: "files", limit: 1 });
    await expect(insertWith({ storedBytes: 9 })).rejects.toMatchObject({ quota: "stored_bytes" });
    await insertWith({ files: 1, storedBytes: 9 }, "other");
    await insertWith({ files: 2, storedBytes: 10 });
  });

  test("a project that is being deleted loses its keys and its rules at once, and takes no others", async () => {
    const { store } = await open();
    await store.putProjectUnlessDeleted(aProject("search", rulesWith({ files: 1 })));
    const key = aKey();
    await store.insertKeyUnlessDeleted({ ...key, project: "search" });
    expect(await store.beginDeletingProjectIfPresent("search")).toBe(true);
    expect(await store.beginDeletingProjectIfPresent("search")).toBe(true);
    expect((await store.findKeysInForce(null))?.keys).toEqual([]);
    expect(await store.findProject("search")).toEqual({
      ...aProject("search"),
      deletedAtMs: storeClock.nowMs(),
    });
    expect(await store.putProjectUnlessDeleted(aProject("search"))).toBe(false);
    // A project without a row may have keys or data, too.
    await store.insertKeyUnlessDeleted({ ...aKey(2), project: "key-only" });
    await insertFile(store, aFile({ project: "file-only" }));
    for (const name of ["key-only", "file-only"]) {
      expect(await store.beginDeletingProjectIfPresent(name)).toBe(true);
      expect((await store.findProject(name))?.deletedAtMs).toBe(storeClock.nowMs());
    }
    expect(await store.beginDeletingProjectIfPresent("never-made")).toBe(false);
    expect(await store.findProject("never-made")).toBeNull();
  });

  test("a key that is made while its project is deleted is refused, or deleted with it", async () => {
    const { store } = await open();
    for (let n = 0; n < 10; n++) {
      const project = `doomed-${n}`;
      await store.putProjectUnlessDeleted(aProject(project));
      const make = (number: number) => store.insertKeyUnlessDeleted({ ...aKey(number), project });
      await Promise.all([
        make(2 * n),
        store.beginDeletingProjectIfPresent(project),
        make(2 * n + 1),
      ]);
    }
    expect((await store.findKeysInForce(null))?.keys).toEqual([]);
  });

  test("a deletion goes on until nothing is left and its time is over, and spares other projects", async () => {
    const { store } = await open();
    const [kept, doomed] = [aFile({ project: "kept" }), aFile({ project: PROJECT })];
    for (const file of [kept, doomed]) await insertFile(store, file);
    await store.insertBatch(aBatch({ project: PROJECT, inputFileId: doomed.id }));
    const other = aBatch({ project: "kept", inputFileId: kept.id });
    await store.insertBatch(other);
    await store.beginDeletingProjectIfPresent(PROJECT);
    expect(await store.purgeProject(PROJECT)).toBe(2);
    expect(await store.findFile(doomed)).toBeNull();
    await forgetDeleted(store);
    // The file is free once the batch that reads it is gone.
    await forgetDeleted(store);
    expect(await store.purgeProject(PROJECT)).toBe(0);
    // A request that was let in before the deletion stores something.
    const late = aFile({ project: PROJECT });
    await insertFile(store, late);
    expect(await store.purgeProject(PROJECT)).toBe(1);
    await forgetDeleted(store);
    expect((await store.findProject(PROJECT))?.deletedAtMs).not.toBeNull();
    storeClock.advance(DELETION_MS);
    expect(await store.purgeProject(PROJECT)).toBe(0);
    expect(await store.findProject(PROJECT)).toBeNull();
    expect(await store.findFile(kept)).toMatchObject({ id: kept.id });
    expect(await store.findBatch(other)).toMatchObject({ id: other.id });
    expect(await store.putProjectUnlessDeleted(aProject(PROJECT))).toBe(true);
  });

  test("a deletion that ends late spares the next project of the name", async () => {
    const { store } = await open();
    await store.putProjectUnlessDeleted(aProject(PROJECT));
    const file = aFile({ project: PROJECT });
    await insertFile(store, file);
    const batch = aBatch({ project: PROJECT, inputFileId: file.id });
    await store.insertBatch(batch);
    const upload = anUpload({ project: PROJECT });
    await store.insertUpload(upload);
    await store.insertKeyUnlessDeleted({ ...aKey(), project: PROJECT });
    await store.purgeProject(PROJECT);
    expect(await store.findFile(file)).toMatchObject({ id: file.id });
    expect(await store.findBatch(batch)).toMatchObject({ id: batch.id, status: "validating" });
    expect(await store.findUpload(upload)).toMatchObject({ id: upload.id, status: "pending" });
    expect((await store.findKeysInForce(null))?.keys).toHaveLength(1);
  });
}
