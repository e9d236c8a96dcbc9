import { execFileSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { sql } from "drizzle-orm";
import { Client } from "pg";
import { afterAll, describe, expect, test } from "vitest";
import type { UntrustedId } from "../../src/batch/batch.ts";
import { newDeliveryId } from "../../src/batch/delivery.ts";
import { amountOf } from "../../src/batch/price.ts";
import { NO_SPENDING } from "../../src/batch/spending.ts";
import { systemClock } from "../../src/clock.ts";
import { IdempotencyKeyLost } from "../../src/store/idempotency.ts";
import { Database } from "../../src/store/postgres/database.ts";
import { openPostgresStore, type PostgresOptions } from "../../src/store/postgres/store.ts";
import type { Store } from "../../src/store/store.ts";
import { startPostgres } from "../support/postgres.ts";
import {
  aFile,
  aReceipt,
  aSegment,
  claimBy,
  claimChunk,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertBatch,
  insertFile,
  NOW_MS,
  openRoutes,
  PROJECT,
  startBatch,
  storeClock,
} from "../support/store-builders.ts";
import type { OpenedStore } from "./opened-store.ts";
import { describeStore } from "./store.ts";

const postgres = await startPostgres("the tests of the PostgreSQL store");
afterAll(async () => {
  await (await shared)?.admin.end();
  await postgres?.[Symbol.asyncDispose]();
});

const ROOT = join(import.meta.dirname, "../..");
const MIGRATIONS_DIR = join(ROOT, "migrations/postgres");

async function openStore(
  url: string,
  options: Pick<PostgresOptions, "migrationsDir"> = {},
): Promise<Store & AsyncDisposable> {
  const opened = await openPostgresStore({
    ...{ url, poolSize: 4, listens: false, clock: systemClock, nowMs: () => storeClock.nowMs() },
    ...options,
  });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  return { ...store, [Symbol.asyncDispose]: () => store.close() };
}

/** Each after those that name it. */
const TABLES = [
  ...[
    "segments",
    "chunks",
    "deliveries",
    "batch_deliveries",
    "batch_progress",
    "batch_runs",
    "batches",
    "files",
  ],
  ...["upload_parts", "uploads", "blob_intents", "idempotency_keys", "slot_shares"],
  ...["replicas", "forecasts", "api_keys", "key_requirement", "model_usage", "signing_keys"],
  ...["projects", "interactive_slots", "reservations"],
];

/** One database for the file, emptied for each test: to make one takes longer than most tests. */
let shared: Promise<{ url: string; admin: Client }> | null = null;

async function makeShared() {
  const url = await postgres!.createDatabase();
  await (await openStore(url)).close();
  const admin = new Client(url);
  await admin.connect();
  return { url, admin };
}

async function open(): Promise<OpenedStore> {
  shared ??= makeShared();
  const { url, admin } = await shared;
  await admin.query(TABLES.map((table) => `delete from ${table}`).join("; "));
  let store = await openStore(url);
  return {
    get store() {
      return store;
    },
    reopen: async () => {
      await store.close();
      store = await openStore(url);
      return store;
    },
    [Symbol.asyncDispose]: () => store.close(),
  };
}

function aFolder() {
  const path = mkdtempSync(join(tmpdir(), "batchd-migrations-"));
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) };
}

/** A copy of the migrations with one more. */
function migrationsOfNextVersion(dir: string, name: string): string {
  cpSync(MIGRATIONS_DIR, dir, { recursive: true });
  const journalPath = join(dir, "meta/_journal.json");
  const journal = JSON.parse(readFileSync(journalPath, "utf8"));
  const last = journal.entries.at(-1);
  journal.entries.push({ ...last, idx: last.idx + 1, when: last.when + 1, tag: name });
  writeFileSync(journalPath, JSON.stringify(journal));
  writeFileSync(join(dir, `${name}.sql`), "alter table batches add column mood text;");
  return dir;
}

async function connect(url: string) {
  const client = new Client(url);
  await client.connect();
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() });
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new Client(url);
  await client.connect();
  const { rows } = await client.query(text);
  await client.end();
  return rows;
}

function testOpening(): void {
  test("of replicas that start together on an empty database one makes the tables, once", async () => {
    const url = await postgres!.createDatabase();
    const stores = await Promise.all(Array.from({ length: 4 }, () => openStore(url)));
    await Promise.all(stores.map((store) => store.ping()));
    await Promise.all(stores.map((store) => store.close()));
    const steps = readdirSync(MIGRATIONS_DIR).filter((name) => name.endsWith(".sql"));
    const [applied] = await query(
      url,
      "select count(*)::int as count from batchd_migrations where hash <> 'lock'",
    );
    expect(applied).toEqual({ count: steps.length });
  });

  test("replicas of the version before run on, and start again, beside an upgraded one", async () => {
    using folder = aFolder();
    const migrationsDir = migrationsOfNextVersion(folder.path, "9999_mood");
    const url = await postgres!.createDatabase();
    await using older = await openStore(url);
    const { batch } = await insertBatch(older);
    await using upgraded = await openStore(url, { migrationsDir });
    expect(await upgraded.findBatch(batch)).toEqual(batch);
    const { batch: later } = await insertBatch(older);
    expect(await upgraded.findBatch(later)).toEqual(later);
    await using again = await openStore(url);
    expect(await again.findBatch(later)).toEqual(later);
  });

  test("a version that does not know of a contraction refuses to start", async () => {
    using folder = aFolder();
    const migrationsDir = migrationsOfNextVersion(folder.path, "9999_contract_mood");
    const url = await postgres!.createDatabase();
    await (await openStore(url, { migrationsDir })).close();
    expect(
      await openPostgresStore({ url, poolSize: 1, listens: false, clock: systemClock }),
    ).toMatchObject({
      ok: false,
      problem: expect.stringContaining("newer version"),
    });
  });

  test("a list that is read on behind its last row shows every row, in whatever order they commit", async () => {
    const url = await postgres!.createDatabase();
    await using store = await openStore(url);
    await using admin = await connect(url);
    // The commit of the first file waits until the test lets it go.
    await admin.query(
      `create or replace function wait_for_test() returns trigger language plpgsql as
         $$ begin perform pg_advisory_xact_lock(42); return null; end $$;
       create constraint trigger slow after insert on files deferrable initially deferred
         for each row when (new.filename = 'slow') execute function wait_for_test();
       select pg_advisory_lock(42)`,
    );
    const slow = insertFile(store, aFile({ filename: "slow" }));
    const isWaiting = "select 1 from pg_locks where not granted";
    await expect.poll(async () => (await admin.query(isWaiting)).rowCount).toBe(1);
    const fast = insertFile(store, aFile({ filename: "fast" }));
    await insertFile(store, aFile({ project: "other" }));
    await expect.poll(async () => (await admin.query(isWaiting)).rowCount).toBe(2);

    const seen: string[] = [];
    const readOn = async (after: UntrustedId<"file"> | null) => {
      const query = { project: PROJECT, purpose: null, order: "asc", limit: 10 } as const;
      const page = await store.listFiles({ ...query, after });
      seen.push(...page!.data.map(({ filename }) => filename));
      return (page!.data.at(-1)?.id ?? after) as UntrustedId<"file"> | null;
    };
    const last = await readOn(null);
    await admin.query("select pg_advisory_unlock(42)");
    await Promise.all([slow, fast]);
    await readOn(last);
    expect(seen).toEqual(["slow", "fast"]);
  });

  test("a database without advisory locks and notifications, as CockroachDB, serves replicas that start together", async () => {
    const url = await postgres!.createDatabase();
    // In this database only: functions belong to one.
    for (const { name } of await query(
      url,
      "select oid::regprocedure::text as name from pg_proc where proname ~ '^pg_(try_)?advisory|^pg_notify$'",
    )) {
      await query(url, `alter function pg_catalog.${name} rename to renamed_${randomInt(2 ** 40)}`);
    }
    const [store, ...others] = await Promise.all([openStore(url), openStore(url), openStore(url)]);
    await startBatch(store!);
    await claimChunk(others[0]!);
    await Promise.all([store!, ...others].map((each) => insertFile(each, aFile())));
    await store!.nudgeToReload();
    await Promise.all([store!, ...others].map((each) => each.close()));
  });

  test("the leases of others outlive the start of a replica", async () => {
    await using opened = await open();
    await startBatch(opened.store);
    const chunk = await claimChunk(opened.store);
    await opened.store.claimIdempotencyKey(PROJECT, "key-1", claimBy("other"));
    const store = await opened.reopen();
    expect(await openRoutes(store)).toEqual([]);
    expect(await store.claimIdempotencyKey(PROJECT, "key-1", claimBy("late"))).toEqual({
      kind: "in_progress",
    });
    expect(await store.recordSegmentIfLeased(chunk.lease, aSegment())).toBe(true);
  });

  test("the migrations make the schema: generating again finds nothing to change", () => {
    using folder = aFolder();
    cpSync(MIGRATIONS_DIR, folder.path, { recursive: true });
    const drizzleKit = join(ROOT, "node_modules/drizzle-kit/bin.cjs");
    const args = ["--dialect=postgresql", "--schema=./src/store/postgres/*schema.ts"];
    // drizzle-kit takes every path for a relative one, and exits with 0 whatever happens.
    const out = `--out=${relative(ROOT, folder.path)}`;
    const said = execFileSync(process.execPath, [drizzleKit, "generate", ...args, out], {
      cwd: ROOT,
      encoding: "utf8",
    });
    expect(said).toContain("No schema changes");
  });
}

function testTexts(): void {
  test("a text with a NUL character, which PostgreSQL cannot store, is no reason to fail", async () => {
    await using opened = await open();
    const { store } = opened;
    const file = aFile({ filename: "a\0b" });
    await insertFile(store, file);
    expect((await store.findFile(file))?.filename).toBe("a\ufffdb");
    expect(
      await store.findFile({ project: PROJECT, id: `${file.id}\0` as typeof file.id }),
    ).toBeNull();
    const { batch } = await insertBatch(store, { metadata: { "a\0": "\0" } });
    expect((await store.findBatch(batch))?.metadata).toEqual({ "a\0": "\0" });
  });
}

/** A table that counts what was committed, and how often each way to use the database ran. */
async function openCounter() {
  const url = await postgres!.createDatabase();
  await query(url, "create table runs (n int)");
  const db = new Database({ connectionString: url, max: 2 }, systemClock);
  const committed = async () => (await query(url, "select n from runs")).length;
  return { url, db, committed, [Symbol.asyncDispose]: () => db.close() };
}

function testRepeating(): void {
  test.each([
    ["a serialisation failure", "do $$ begin raise exception using errcode = '40001'; end $$"],
    ["a deadlock", "do $$ begin raise exception using errcode = '40P01'; end $$"],
    ["a connection that is lost", "select pg_terminate_backend(pg_backend_pid())"],
  ])("after %s the transaction runs again, and counts once", async (_name, trouble) => {
    await using counter = await openCounter();
    let runCount = 0;
    const result = await counter.db.transaction(async (db) => {
      await db.execute(sql`insert into runs values (1)`);
      if (++runCount < 3) await db.execute(sql.raw(trouble));
      return "done";
    });
    expect([result, runCount, await counter.committed()]).toEqual(["done", 3, 1]);
  });

  test("when the connection is lost during the commit, nothing is repeated: it may have counted", async () => {
    await using counter = await openCounter();
    await query(
      counter.url,
      `create function die() returns trigger language plpgsql as
         $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
       create constraint trigger die after insert on runs deferrable initially deferred
         for each row execute function die()`,
    );
    let runCount = 0;
    const running = counter.db.transaction(async (db) => {
      runCount++;
      await db.execute(sql`insert into runs values (1)`);
    });
    await expect(running).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    expect(runCount).toBe(1);
    expect(await counter.db.read(async (db) => (await db.execute(sql`select 1`)).rowCount)).toBe(1);
  });

  test("deliveries of batches that a replica without deliveries has ended become due, a page at a time", async () => {
    await using opened = await open();
    const { store } = opened;
    const ids = [];
    for (let n = 0; n < 2; n++) {
      const { batch } = await finalizingBatch(store);
      await finishBatch(store, await claimToFinalize(store));
      const delivery = {
        ...{ id: newDeliveryId(), location: "share", s3: null, path: null },
        ...{ format: "jsonl" as const, destination: "share", credentials: null },
        createdAtMs: NOW_MS,
      };
      await store.insertDeliveryIfFinal({ project: batch.project, id: batch.id }, delivery);
      ids.push(delivery.id);
    }
    expect(await store.settleOverlookedDeliveries(10)).toBe(0);
    if (shared === null) throw new Error("no database");
    const { admin } = await shared;
    await admin.query("update batch_deliveries set due_at_ms = null, next_attempt_at_ms = null");
    const claim = { ...claimBy("runner"), limit: 10, busyDestinations: [], toClientBuckets: true };
    expect(await store.claimDeliveries(claim)).toEqual([]);
    for (const id of ids) {
      expect(await store.settleOverlookedDeliveries(1)).toBe(1);
      expect(await store.claimDeliveries(claim)).toMatchObject([{ delivery: { id } }]);
    }
    expect(await store.settleOverlookedDeliveries(1)).toBe(0);
  });

  test("what the code itself throws rolls back, comes out as it is, and leaves the connection usable", async () => {
    await using opened = await open();
    const { store } = opened;
    const { batch } = await insertBatch(store);
    const again = { ...batch, id: `${batch.id}x` as typeof batch.id };
    await expect(store.insertBatch(again, { receipt: aReceipt() })).rejects.toThrow(
      IdempotencyKeyLost,
    );
    expect(await store.findBatch(again)).toBeNull();
    await expect(store.insertBatch(batch)).rejects.toMatchObject({ code: "STORE_REFUSAL" });
  });
}

function testTimeouts(): void {
  test("a statement that nobody waits for any more ends on the server, too", async () => {
    const url = await postgres!.createDatabase();
    const limits = { max: 2, query_timeout: 300 };
    const db = new Database({ connectionString: url, ...limits }, systemClock);
    const slow = db.read((each) => each.execute(sql`select pg_sleep(3600)`));
    await expect(slow).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    const running = `select 1 from pg_stat_activity
      where datname = current_database() and state = 'active' and query like '%pg_sleep(3600)%'
        and pid <> pg_backend_pid()`;
    await expect.poll(() => query(url, running)).toEqual([]);
    await db.close();
  });
}

/** Resolves once another connection waits for a lock. */
const isWaitedFor = (admin: Client) =>
  expect
    .poll(async () => (await admin.query("select 1 from pg_locks where not granted")).rowCount ?? 0)
    .toBeGreaterThan(0);

function testIntents(): void {
  test("the intents of a batch are locked in one order, by renewals and at its end", async () => {
    await using opened = await open();
    const { store } = opened;
    const { url } = await shared!;
    const [first, last] = [aFile(), aFile()].sort((a, b) => (a.blobKey < b.blobKey ? -1 : 1));
    await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    // The rows lie in the other order than their keys.
    for (const { blobKey } of [last!, first!]) await store.declareBlobs([blobKey], 60_000);
    for (const work of [
      () => store.renewIntents([last!.blobKey, first!.blobKey], 60_000),
      () =>
        store.finishBatchIfLeased(lease, {
          ...{ output: last!, error: first!, failures: [], lostBlobKeys: [], announcements: [] },
          counts: { completed: 1, failed: 0 },
        }),
    ]) {
      await using admin = await connect(url);
      await admin.query("begin");
      const lock = "select 1 from blob_intents where blob_key = $1 for update nowait";
      await admin.query(lock, [first!.blobKey]);
      const done = work();
      await isWaitedFor(admin);
      expect((await admin.query(lock, [last!.blobKey])).rowCount).toBe(1);
      await admin.query("commit");
      await done;
    }
    expect(await store.findFile(last!)).not.toBeNull();
  });
}

function testBudgets(): void {
  test("chunks that wait for the decisions of their project leave connections to everyone else", async () => {
    await using opened = await open();
    const { store } = opened;
    const { url } = await shared!;
    const models = Array.from({ length: 6 }, (_, n) => `model-${n}`);
    const { batch } = await startBatch(store, models, { budget: "10" });
    const leases = [];
    for (const model of models) leases.push((await claimChunk(store, { model })).lease);
    const one = { tokens: 1, cost: amountOf("1") };
    const quotas = { tokensPerDay: null, costPerMonth: null };
    const request = { project: PROJECT, quotas, inFlight: NO_SPENDING, needed: one, wanted: one };
    await using admin = await connect(url);
    await admin.query("begin");
    await admin.query("select from project_locks for update");
    const reserved = leases.map((lease) => store.reserveIfLeased(lease, request));
    await isWaitedFor(admin);
    expect((await store.findBatch(batch))?.budget).toBe("10");
    await admin.query("commit");
    for (const { kind } of await Promise.all(reserved)) expect(kind).toBe("granted");
  });

  test("a raised budget that commits while the old one is about to pause the batch prevents the pause", async () => {
    await using opened = await open();
    const { store } = opened;
    const { url } = await shared!;
    const { batch } = await startBatch(store, ["model"], { budget: "1" });
    const { lease } = await claimChunk(store, { model: "model" });
    const two = { tokens: 1, cost: amountOf("2") };
    const quotas = { tokensPerDay: null, costPerMonth: null };
    const request = { project: PROJECT, quotas, inFlight: NO_SPENDING, needed: two, wanted: two };
    await using admin = await connect(url);
    await admin.query("begin");
    await admin.query("update batches set budget = '9' where id = $1", [batch.id]);
    const reserved = store.reserveIfLeased(lease, request);
    await isWaitedFor(admin);
    await admin.query("commit");
    expect(await reserved).toEqual({ kind: "wait" });
    expect((await store.findBatch(batch))?.paused).toBeNull();
    expect(await store.reserveIfLeased(lease, request)).toMatchObject({ kind: "granted" });
  });
}

describe.skipIf(postgres === null)("on PostgreSQL", () => {
  describeStore("PostgreSQL", open);
  describe("opening", testOpening);
  describe("texts", testTexts);
  describe("repeating", testRepeating);
  describe("timeouts", testTimeouts);
  describe("intents", testIntents);
  describe("budgets", testBudgets);
});
