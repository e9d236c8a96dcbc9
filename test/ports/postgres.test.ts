import { execFileSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { cpSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { describe, expect, test } from "vitest";
import type { UntrustedId } from "../../src/batch/batch.ts";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query } from "../support/postgres.ts";
import {
  aFile,
  aSegment,
  claimBy,
  claimChunk,
  insertBatch,
  insertFile,
  openRoutes,
  PROJECT,
  startBatch,
  temporaryFolder,
} from "../support/store-builders.ts";
import { connect, isWaitedFor, openStore, PostgresStores } from "./opened-postgres.ts";
import { describeStore } from "./store.ts";

const postgres = forAllTests(await PostgresStores.start("the tests of the PostgreSQL store"));
const open = () => postgres!.open();

const ROOT = join(import.meta.dirname, "../..");
const MIGRATIONS_DIR = join(ROOT, "migrations/postgres");

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

function testOpening(): void {
  test("of replicas that start together on an empty database one makes the tables, once", async () => {
    const url = await postgres!.createEmptyDatabase();
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
    using folder = temporaryFolder("batchd-migrations-");
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

  test("a change of a table that waits for a backup keeps no replica from its work, and is made after the backup", async () => {
    using folder = temporaryFolder("batchd-migrations-");
    const migrationsDir = migrationsOfNextVersion(folder.path, "9999_mood");
    const url = await postgres!.createDatabase();
    await using older = await openStore(url);
    const { batch } = await insertBatch(older);
    await using backup = await connect(url);
    await backup.query("begin; select from batches");
    const upgrading = openStore(url, { migrationsDir });
    await isWaitedFor(backup);
    expect(await older.findBatch(batch)).toEqual(batch);
    await backup.query("commit");
    await using upgraded = await upgrading;
    expect(await upgraded.findBatch(batch)).toEqual(batch);
  });

  test("a version that does not know of a contraction refuses to start", async () => {
    using folder = temporaryFolder("batchd-migrations-");
    const migrationsDir = migrationsOfNextVersion(folder.path, "9999_contract_mood");
    const url = await postgres!.createEmptyDatabase();
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
    await using replica = await openStore(url);
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
    const fast = insertFile(replica, aFile({ filename: "fast" }));
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
    const url = await postgres!.createEmptyDatabase();
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
    const opened = await open();
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
    using folder = temporaryFolder("batchd-migrations-");
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
    const { store } = await open();
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

describe.skipIf(postgres === null)("on PostgreSQL", () => {
  describeStore("PostgreSQL", open);
  describe("opening", testOpening);
  describe("texts", testTexts);
});
