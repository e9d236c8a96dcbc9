/** What a deleted project has left behind goes from the database and the disk, and no other project is touched or held up. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { BlobIntents } from "../../../src/blobs/blob-intents.ts";
import type { Blobs } from "../../../src/blobs/blobs.ts";
import { purgeOnce, purgeProjects } from "../../../src/engine/housekeeping/purging.ts";
import { StoreDamaged } from "../../../src/store/failures.ts";
import { DEFAULT_RULES } from "../../../src/store/projects.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
import type { Store } from "../../../src/store/store.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";
import { Events } from "../../support/events.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import {
  claimChunk,
  LEASE_TTL_MS,
  NOW_MS,
  startBatch,
  temporaryFolder,
} from "../../support/store-builders.ts";

/** Projects with a batch each, whose inputs are blobs. All but the last one are being deleted. */
async function projectsBench(names: readonly string[]) {
  const dir = temporaryFolder("batchd-purging-");
  const folder = await openBlobFolder();
  const { blobs } = folder;
  const clock = new FakeClock(NOW_MS);
  const opened = await openSqliteStore({ path: join(dir.path, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const events = new Events();
  const parts = { store, blobs, clock, log: events.log };
  const blobKeys: string[] = [];
  for (const project of names) {
    await store.putProjectUnlessDeleted({
      name: project,
      rules: DEFAULT_RULES,
      createdAtMs: NOW_MS,
    });
    const { input } = await startBatch(store, ["llama"], { project });
    await blobs.putBytes(input.blobKey, [Buffer.from("{}\n")]);
    blobKeys.push(input.blobKey);
  }
  for (const project of names.slice(0, -1)) await store.beginDeletingProjectIfPresent(project);
  return {
    deps: { ...parts, intents: new BlobIntents(parts), isDraining: () => false },
    store,
    clock,
    events,
    /** Resolves to the projects whose input is still on the disk. */
    kept: async () => {
      const found: string[] = [];
      for await (const { key } of blobs.list("files/")) found.push(key);
      return names.filter((_, i) => found.includes(blobKeys[i]!));
    },
    async [Symbol.asyncDispose]() {
      await store.close();
      folder[Symbol.dispose]();
      dir[Symbol.dispose]();
    },
  };
}

test("a project goes in rounds while a chunk of it is worked on, and one whose round fails holds up no other", async () => {
  await using bench = await projectsBench(["held", "broken", "next", "kept"]);
  const { deps, store, clock, events, kept } = bench;
  const { batch } = await claimChunk(store);
  expect(batch.project).toBe("held");
  const purgeProject: Store["purgeProject"] = (name) =>
    name === "broken" ? Promise.reject(new Error("it failed")) : store.purgeProject(name);
  const failing = {
    ...deps,
    store: Object.assign(Object.create(store), { purgeProject }) as Store,
  };

  await purgeProjects(["held", "broken", "next"], failing, { cursors: {}, idle: new Set() });
  expect(await kept()).toEqual(["held", "broken", "kept"]);
  expect(events.count("sweep.failed", { thing: "broken" })).toBe(1);
  expect(await purgeOnce("held", deps)).toBeGreaterThan(0);

  clock.advance(LEASE_TTL_MS);
  expect(await purgeOnce("held", deps)).toBe(0);
  expect(await purgeOnce("broken", deps)).toBe(0);
  expect(await kept()).toEqual(["kept"]);
});

test("deleted projects whose data cannot be removed are looked at in turn, and go once it can", async () => {
  const names = Array.from({ length: 25 }, (_, n) => `stuck-${n}`);
  await using bench = await projectsBench([...names, "kept"]);
  const { deps, store, clock, kept } = bench;
  const looks = new Set<string>();
  const purgeProject: Store["purgeProject"] = (name) => {
    looks.add(name);
    return store.purgeProject(name);
  };
  let isRefused = true;
  const refusal = () => Promise.reject(new Error("it is refused"));
  const blobs: Pick<Blobs, "delete" | "deleteAll"> = {
    delete: (...keys) => (isRefused ? refusal() : deps.blobs.delete(...keys)),
    deleteAll: (prefix) => (isRefused ? refusal() : deps.blobs.deleteAll(prefix)),
  };
  const refusing = {
    ...deps,
    store: Object.assign(Object.create(store), { purgeProject }) as Store,
    blobs: Object.assign(Object.create(deps.blobs), blobs) as Blobs,
  };
  const state = { cursors: {}, idle: new Set<string>() };
  const pass = async () => {
    looks.clear();
    while (await purgeProjects(names, refusing, state));
    return looks.size;
  };

  for (let passes = 0; passes < 4; passes++) await pass();
  expect(await pass()).toBe(10);
  isRefused = false;
  clock.advance(60_000);
  await pass();
  expect(await kept()).toEqual(["kept"]);
});

test("deleted projects without data are looked at in turn, however many there are, and late data of each goes", async () => {
  const names = Array.from({ length: 25 }, (_, n) => `gone-${n}`);
  await using bench = await projectsBench([...names, "kept"]);
  const { deps, store, kept } = bench;
  const looks: string[] = [];
  const purgeProject: Store["purgeProject"] = (name) => {
    looks.push(name);
    return store.purgeProject(name);
  };
  const counting = {
    ...deps,
    store: Object.assign(Object.create(store), { purgeProject }) as Store,
  };
  const state = { cursors: {}, idle: new Set<string>() };
  const pass = async () => {
    looks.length = 0;
    while (await purgeProjects(names, counting, state));
    return new Set(looks).size;
  };

  await pass();
  expect(await kept()).toEqual(["kept"]);
  for (const project of names) await startBatch(store, ["llama"], { project });
  expect(await pass()).toBe(10);
  expect(await pass()).toBe(10);
  await pass();
  for (const project of names) {
    expect(await store.listBatches({ project, limit: 1, after: null })).toMatchObject({ data: [] });
  }
  expect(await pass()).toBe(10);
});

test("a damaged database ends the pass: what it says of the other projects is not believed", async () => {
  const names = Array.from({ length: 20 }, (_, n) => `gone-${n}`);
  await using bench = await projectsBench([...names, "kept"]);
  const { deps, store, events } = bench;
  const looks: string[] = [];
  const damage = new StoreDamaged("batchd.sqlite", new Error("malformed"));
  const purgeProject: Store["purgeProject"] = async (name) => {
    looks.push(name);
    throw damage;
  };
  const damaged = {
    ...deps,
    store: Object.assign(Object.create(store), { purgeProject }) as Store,
  };
  const state = { cursors: {}, idle: new Set<string>() };
  await expect(purgeProjects(names, damaged, state)).rejects.toBe(damage);
  expect(looks.length).toBeLessThan(names.length);
  expect(events.count("sweep.failed")).toBe(0);
});
