import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import Database from "better-sqlite3";
import { describe, expect, onTestFinished, test } from "vitest";
import type { FileId } from "../../src/batch/batch.ts";
import { WAITING_PAGE } from "../../src/store/sources.ts";
import { lockDataDir } from "../../src/store/sqlite/lock.ts";
import { openSqliteStore, type SqliteOptions } from "../../src/store/sqlite/store.ts";
import type { Store } from "../../src/store/store.ts";
import { dataRoot } from "../support/data-root.ts";
import {
  AFTER_LEASES_MS,
  aBatch,
  aFile,
  anAnnouncement,
  anUpload,
  aPlan,
  aResult,
  aSegment,
  at,
  claimBy,
  claimChunk,
  claimFirst,
  claimToFinalize,
  claimWebhookDeliveries,
  finalizingBatch,
  finishBatch,
  insertBatch,
  insertFile,
  openRoutes,
  PROJECT,
  startBatch,
  storeClock,
  temporaryFolder,
} from "../support/store-builders.ts";
import { putTables } from "../support/tables.ts";
import type { OpenedStore } from "./opened-store.ts";
import { describeStore } from "./store.ts";

const ROOT = join(import.meta.dirname, "../..");
const MIGRATIONS_DIR = join(ROOT, "migrations/sqlite");

const aFolder = () => temporaryFolder("batchd-sqlite-", dataRoot());

/** A copy of the migrations with one more. */
function migrationsOfNextVersion(folder: string): string {
  const dir = join(folder, "migrations");
  cpSync(MIGRATIONS_DIR, dir, { recursive: true });
  const journalPath = join(dir, "meta/_journal.json");
  const journal = JSON.parse(readFileSync(journalPath, "utf8"));
  const last = journal.entries.at(-1);
  journal.entries.push({ ...last, idx: last.idx + 1, when: last.when + 1, tag: "9999_mood" });
  writeFileSync(journalPath, JSON.stringify(journal));
  writeFileSync(join(dir, "9999_mood.sql"), "alter table batches add column mood text;");
  return dir;
}

async function openStore(options: SqliteOptions): Promise<Store> {
  const opened = await openSqliteStore(options);
  if (!opened.ok) throw new Error(opened.problem);
  return opened.store;
}

async function open(): Promise<OpenedStore> {
  const folder = aFolder();
  const path = join(folder.path, "batchd.db");
  putTables(path);
  let store = await openStore({ path, clock: storeClock });
  onTestFinished(async () => {
    await store.close();
    folder[Symbol.dispose]();
  });
  return {
    store,
    reopen: async () => {
      await store.close();
      store = await openStore({ path, clock: storeClock });
      return store;
    },
  };
}

describeStore("SQLite", open);

describe("SQLite: opening", () => {
  test("every lease is taken back, and its former holder can write no more", async () => {
    const opened = await open();
    await startBatch(opened.store);
    const chunk = await claimChunk(opened.store);
    await insertBatch(opened.store);
    const validation = await opened.store.claimBatchToValidate(claimBy("before"));

    const store = await opened.reopen();
    expect(await store.recordSegmentIfLeased(chunk.lease, aSegment())).toBe(false);
    expect(await store.startBatchIfLeased(validation!.lease, aPlan())).toBe(false);
    expect(await openRoutes(store)).toEqual(["llama"]);
    expect((await claimChunk(store)).lease.epoch).toBeGreaterThan(chunk.lease.epoch);
    const again = await store.claimBatchToValidate(claimBy("after"));
    expect(again?.lease.epoch).toBeGreaterThan(validation!.lease.epoch);
  });

  test("a finalizer's lease is taken back too", async () => {
    const opened = await open();
    await finalizingBatch(opened.store);
    const before = await claimToFinalize(opened.store);
    const store = await opened.reopen();
    const after = await claimToFinalize(store);
    expect(after.epoch).toBeGreaterThan(before.epoch);
  });

  test("a delivery that was being made is due again, and counts as attempted", async () => {
    const opened = await open();
    await finalizingBatch(opened.store);
    const announcement = anAnnouncement();
    const lease = await claimToFinalize(opened.store);
    const result = aResult({ announcements: [announcement] });
    await finishBatch(opened.store, lease, result);
    const claim = { ...claimBy("sender"), limit: 10, maxLeased: 10 };
    expect(await claimWebhookDeliveries(opened.store, claim)).toHaveLength(1);
    const store = await opened.reopen();
    expect(await claimWebhookDeliveries(store, claim)).toMatchObject([
      { ...announcement, attemptCount: 1 },
    ]);
  });

  test("a key that was in progress is free again: no process is left to answer it", async () => {
    const opened = await open();
    await opened.store.claimIdempotencyKey(PROJECT, "key-1", claimBy("before"));
    const store = await opened.reopen();
    const state = await store.claimIdempotencyKey(PROJECT, "key-1", claimBy("after"));
    expect(state).toEqual({ kind: "new" });
  });

  test("a process that opens the store alone gives up all intents: their writers are gone", async () => {
    const opened = await open();
    await opened.store.declareBlobs(["files/a"], 1_000);
    const store = await opened.reopen();
    expect(await store.findGarbage(["files/a"])).toEqual(["files/a"]);
  });

  test("commits survive a power cut: write-ahead log, synced in full", async () => {
    using folder = aFolder();
    const path = join(folder.path, "batchd.db");
    const store = await openStore({ path, clock: storeClock });
    await store.close();
    const database = new Database(path, { readonly: true });
    expect(database.pragma("journal_mode", { simple: true })).toBe("wal");
    database.close();
  });

  test("an older database is brought up to date, and then refused by the older version", async () => {
    using folder = aFolder();
    const path = join(folder.path, "batchd.db");
    const newer = migrationsOfNextVersion(folder.path);
    const store = await openStore({ path, clock: storeClock });
    const { batch } = await insertBatch(store);
    await store.close();

    const upgraded = await openStore({ path, clock: storeClock, migrationsDir: newer });
    expect(await upgraded.findBatch(batch)).toEqual(batch);
    await upgraded.close();
    expect(await openSqliteStore({ path, clock: storeClock })).toEqual({
      ok: false,
      problem: expect.stringContaining("newer version"),
    });
    await (await openStore({ path, clock: storeClock, migrationsDir: newer })).close();
  });

  test("a file that is no database is not mistaken for one", async () => {
    using folder = aFolder();
    const path = join(folder.path, "batchd.db");
    writeFileSync(path, "a letter to the operator, long enough to be a header of something else");
    await expect(openSqliteStore({ path, clock: storeClock })).rejects.toThrow();
    expect(readFileSync(path, "utf8")).toContain("a letter");
  });
});

describe("SQLite: a look for unused files", () => {
  test("other work goes on while thousands of deleted files are looked at that batches still read", async () => {
    using folder = aFolder();
    const path = join(folder.path, "batchd.db");
    putTables(path);
    const store = await openStore({ path, clock: storeClock });
    const { input } = await startBatch(store, ["llama"]);
    const database = new Database(path);
    copyRow(database, "files", 5_000, { id: "id || n", blob_key: "blob_key || n" });
    copyRow(database, "batches", 5_000, { id: "id || n", input_file_id: "input_file_id || n" });
    database.exec("update files set deleted_at_ms = 1");
    database.close();
    const unused = aFile();
    await insertFile(store, unused);
    await store.deleteFileIfPresent({ project: PROJECT, id: unused.id });
    let hasLooked = false;
    const looking = store.listUnusedFiles(10).then((found) => {
      hasLooked = true;
      return found;
    });
    await nextTurn();
    expect(hasLooked).toBe(false);
    expect(await looking).toEqual([unused]);
    expect(await store.listUnusedFiles(10, input.id)).toEqual([unused]);
    await store.close();
  });

  test("batches that wait for an open one are not read in the look for those whose source has ended", async () => {
    const { store } = await open();
    const source = aBatch();
    await store.insertBatch(source);
    const made = { lines: "all", isMerged: false, merge: null, template: null } as const;
    for (let n = 0; n < WAITING_PAGE + 1; n++) {
      const batch = aBatch({ source: { ...made, batchId: source.id }, isInputPending: true });
      await store.insertBatch(batch);
    }
    // A look that reads a page of them takes a turn of the event loop before the next page.
    let turns = 0;
    const turn = setImmediate(() => {
      turns += 1;
    });
    expect(await store.claimBatchToDerive(claimBy("a"))).toBeNull();
    clearImmediate(turn);
    expect(turns).toBe(0);
  });
});

describe("SQLite: a batch that starts page by page", () => {
  test("a large batch that is cancelled or overtaken while it starts has none of the chunks written so far", async () => {
    const { store } = await open();
    const large = aPlan(Array.from({ length: 2_000 }, () => "llama"));
    const [cancelled, overtaken] = [await insertBatch(store), await insertBatch(store)];
    const [first, second] = [claimBy("a"), claimBy("a")];
    const starting = [
      store.startBatchIfLeased((await store.claimBatchToValidate(first))!.lease, large),
      store.startBatchIfLeased((await store.claimBatchToValidate(second))!.lease, large),
    ];
    await store.cancelBatchIfOpen(cancelled.batch);
    const next = await at(store, AFTER_LEASES_MS).claimBatchToValidate(claimBy("b"));
    expect(next?.batch.id).toBe(overtaken.batch.id);
    expect(await Promise.all(starting)).toEqual([false, false]);
    expect(await store.listRunnable()).toEqual([]);
    expect((await store.listOpenBatches()).map(({ work }) => work)).toEqual([[]]);
    const toClaim = { ...claimBy("c"), batchId: overtaken.batch.id, model: "llama" };
    expect(await claimFirst(store, toClaim)).toBeNull();

    await at(store, AFTER_LEASES_MS).closeUnheldChunks();
    const toFinalize = await at(store, AFTER_LEASES_MS).claimBatchToFinalize(claimBy("c"));
    expect(toFinalize?.batch.id).toBe(cancelled.batch.id);
    expect(await store.listChunkJournals(cancelled.batch.id)).toEqual([]);

    const small = aPlan(["qwen", "llama"]);
    expect(await at(store, AFTER_LEASES_MS).startBatchIfLeased(next!.lease, small)).toBe(true);
    const journals = await store.listChunkJournals(overtaken.batch.id);
    expect(journals.map(({ chunk }) => chunk.model)).toEqual(["qwen", "llama"]);
  });
});

/** Copies the one row of a table so often; `changed` has expressions for columns that differ. */
function copyRow(
  database: Database.Database,
  table: string,
  count: number,
  changed: Readonly<Record<string, string>>,
): void {
  const columns = (database.pragma(`table_info(${table})`) as { readonly name: string }[])
    .map(({ name }) => name)
    .filter((name) => name !== "sequence");
  database.exec(`
    with recursive numbers(n) as (
      select 1 union all select n + 1 from numbers where n < ${count})
    insert into ${table} (${columns.join(", ")})
    select ${columns.map((name) => changed[name] ?? name).join(", ")} from numbers, ${table}`);
}

/** Runs one migration again, on rows as an earlier version left them. */
function runMigration(path: string, name: string): void {
  const file = readdirSync(MIGRATIONS_DIR).find((each) => each.includes(name)) as string;
  const database = new Database(path);
  database.exec(readFileSync(join(MIGRATIONS_DIR, file), "utf8"));
  database.close();
}

describe("SQLite: migrations", () => {
  test("the migrations make the schema: generating again finds nothing to change", () => {
    using folder = aFolder();
    cpSync(MIGRATIONS_DIR, folder.path, { recursive: true });
    const drizzleKit = join(ROOT, "node_modules/drizzle-kit/bin.cjs");
    const args = ["--dialect=sqlite", "--schema=./src/store/sqlite/*schema.ts"];
    // drizzle-kit takes every path for a relative one, and exits with 0 whatever happens.
    const out = `--out=${relative(ROOT, folder.path)}`;
    const said = execFileSync(process.execPath, [drizzleKit, "generate", ...args, out], {
      cwd: ROOT,
      encoding: "utf8",
    });
    expect(said).toContain("No schema changes");
    expect(readdirSync(folder.path).toSorted()).toEqual(readdirSync(MIGRATIONS_DIR).toSorted());
  });

  test("open batches that an earlier version let read another project's file end as failed", async () => {
    using folder = aFolder();
    const path = join(folder.path, "batchd.db");
    const store = await openStore({ path, clock: storeClock });
    const own = await startBatch(store);
    const foreign = await startBatch(store, ["llama"], { inputFileId: own.input.id, project: "b" });
    await store.close();

    runMigration(path, "foreign_files");

    const upgraded = await openStore({ path, clock: storeClock });
    expect(await upgraded.findBatch(foreign.batch)).toMatchObject({
      status: "failed",
      faults: [
        { message: expect.stringContaining(`Cannot find file ${own.input.id}, or project b`) },
      ],
    });
    expect((await upgraded.findBatch(own.batch))?.status).toBe("in_progress");
    expect(await upgraded.listBatchesToTidy(10)).toEqual([foreign.batch.id]);
    await upgraded.close();
  });

  test("texts that an earlier version stored at any length are cut to what is accepted now", async () => {
    using folder = aFolder();
    const path = join(folder.path, "batchd.db");
    const store = await openStore({ path, clock: storeClock });
    const long = "n".repeat(100_000);
    const [file, short] = [aFile({ filename: long }), aFile({ filename: "ü".repeat(512) })];
    for (const each of [file, short]) await insertFile(store, each);
    const upload = anUpload({ filename: long, mimeType: long });
    await store.insertUpload(upload);
    const { batch } = await insertBatch(store, { inputFileId: `file-${long}` as FileId });
    await store.close();

    runMigration(path, "bound_stored_texts");

    const upgraded = await openStore({ path, clock: storeClock });
    expect((await upgraded.findFile(file))?.filename).toHaveLength(512);
    expect(await upgraded.findFile(short)).toEqual(short);
    const { filename, mimeType } = (await upgraded.findUpload(upload))!;
    expect([filename.length, mimeType.length]).toEqual([512, 255]);
    expect((await upgraded.findBatch(batch))?.inputFileId).toHaveLength(64);
    await upgraded.close();
  });
});

describe("the lock of a data folder", () => {
  test("a folder has one owner at a time", () => {
    using folder = aFolder();
    const release = lockDataDir(folder.path, join(folder.path, "batchd.sqlite"));
    expect(release).not.toBeNull();
    expect(lockDataDir(folder.path, join(folder.path, "batchd.sqlite"))).toBeNull();
    release?.();
    const next = lockDataDir(folder.path, join(folder.path, "batchd.sqlite"));
    expect(next).not.toBeNull();
    next?.();
  });

  test("the lock goes with its process, even by kill -9, and not before", async () => {
    using folder = aFolder();
    // It keeps nothing of what it gets and collects garbage: the lock must not depend on either.
    const script = `
      import { lockDataDir } from ${JSON.stringify(join(ROOT, "src/store/sqlite/lock.ts"))};
      const isOurs = lockDataDir(${JSON.stringify(folder.path)}, ${JSON.stringify(join(folder.path, "batchd.sqlite"))}) !== null;
      setInterval(() => {}, 1_000);
      setImmediate(() => { gc(); setImmediate(() => console.log(isOurs ? "locked" : "refused")); });`;
    const args = ["--expose-gc", "--input-type=module", "--eval", script];
    const owner = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "ignore"] });
    const exited = once(owner, "exit");
    try {
      const [line] = await once(owner.stdout, "data");
      expect(String(line)).toBe("locked\n");
      expect(lockDataDir(folder.path, join(folder.path, "batchd.sqlite"))).toBeNull();
    } finally {
      owner.kill("SIGKILL");
      await exited;
    }
    const release = lockDataDir(folder.path, join(folder.path, "batchd.sqlite"));
    expect(release).not.toBeNull();
    release?.();
  });
});
