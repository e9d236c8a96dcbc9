/**
 * Databases of the first version, with data, under all migrations that came since. The rows are made by the store of today and
 * put into the tables of then, so that each has the columns that both know.
 */
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import { Client } from "pg";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { migrate } from "../../src/store/postgres/migrations.ts";
import { openDatabase } from "../../src/store/sqlite/database.ts";
import { migrateIfKnown } from "../../src/store/sqlite/migrations.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import type { Store } from "../../src/store/store.ts";
import { openStore } from "../ports/opened-postgres.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import {
  aFile,
  anAnnouncement,
  aSegment,
  claimBy,
  claimChunk,
  claimToFinalize,
  claimWebhookDeliveries,
  finalizingBatch,
  finishBatch,
  insertBatch,
  NO_RESULT,
  PROJECT,
  startBatch,
  storeClock,
  temporaryFolder,
} from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("a database of the first version"));

type Row = Readonly<Record<string, unknown>>;

const ROOT = join(import.meta.dirname, "../..");
/** Each after those that its rows name. */
const TABLES = ["files", "batches", "chunks", "segments", "deliveries"];

/** A copy of the migrations with the first one alone. */
function firstMigration(kind: "postgres" | "sqlite", folder: string): string {
  const dir = join(folder, "migrations");
  cpSync(join(ROOT, "migrations", kind), dir, { recursive: true });
  const path = join(dir, "meta/_journal.json");
  const journal = JSON.parse(readFileSync(path, "utf8"));
  writeFileSync(path, JSON.stringify({ ...journal, entries: journal.entries.slice(0, 1) }));
  return dir;
}

/** A batch that has ended with a webhook to send, one with lines in the journal, and one that waits. */
async function fill(store: Store) {
  const { batch: ended } = await finalizingBatch(store);
  const output = aFile({ purpose: "batch_output" });
  const announcements = [anAnnouncement()];
  await finishBatch(store, await claimToFinalize(store), { ...NO_RESULT, output, announcements });
  const { batch: running } = await startBatch(store);
  const { lease } = await claimChunk(store);
  await store.recordSegmentIfLeased(lease, aSegment({ completed: 3 }));
  await store.releaseChunkIfLeased(lease);
  const { batch: waiting } = await insertBatch(store);
  return { ended, running, waiting };
}

/** Everything works on, and what was there is as it was. */
async function expectToGoOn(store: Store, before: Store, ids: Awaited<ReturnType<typeof fill>>) {
  for (const { id } of Object.values(ids)) {
    const scoped = { project: PROJECT, id };
    const known = await before.findBatch(scoped);
    // The first version did not number lines.
    expect(await store.findBatch(scoped)).toEqual({ ...known, lineMarks: [] });
  }
  const claim = { ...claimBy("sender"), limit: 1, maxLeased: 1 };
  const [webhook] = await claimWebhookDeliveries(store, claim);
  expect(webhook?.batchId).toBe(ids.ended.id);
  const chunk = await claimChunk(store);
  expect([chunk.batch.id, chunk.segments.length]).toEqual([ids.running.id, 1]);
  await store.closeChunkIfLeased(chunk.lease, aSegment({ completed: 7 }));
  expect(await finishBatch(store, await claimToFinalize(store))).toBe(true);
  expect((await store.claimBatchToValidate(claimBy("a")))?.batch.id).toBe(ids.waiting.id);
  expect(
    await store.deleteBatchIfPresent({ project: PROJECT, id: ids.ended.id }, { withInput: true }),
  ).toBe(true);
  await store.forgetBatch(ids.ended.id);
  await store.forgetChunks(ids.running.id);
}

const shared = (row: Row, columns: readonly string[]): Row =>
  Object.fromEntries(Object.entries(row).filter(([name]) => columns.includes(name)));

test("SQLite: a folder of the first version goes on with its batches", async () => {
  using folder = temporaryFolder("batchd-first-");
  const [newPath, oldPath] = [join(folder.path, "new.db"), join(folder.path, "old.db")];
  const open = async (path: string) => {
    const opened = await openSqliteStore({ path, clock: storeClock });
    if (!opened.ok) throw new Error(opened.problem);
    return opened.store;
  };
  const first = openDatabase(oldPath);
  migrateIfKnown(first, firstMigration("sqlite", folder.path));
  first.$client.close();
  const before = await open(newPath);
  const ids = await fill(before);
  const [source, target] = [new Database(newPath, { readonly: true }), new Database(oldPath)];
  for (const table of TABLES) {
    const columns = target.pragma(`table_info(${table})`) as { name: string }[];
    for (const row of source.prepare(`select * from ${table} order by sequence`).all() as Row[]) {
      // The model of a chunk had another name.
      const known = table === "chunks" ? { ...row, route: row["model"] } : row;
      const kept = shared(
        known,
        columns.map(({ name }) => name),
      );
      const names = Object.keys(kept);
      const marks = names.map(() => "?").join(", ");
      target
        .prepare(`insert into ${table} (${names.join(", ")}) values (${marks})`)
        .run(...Object.values(kept));
    }
  }
  for (const each of [source, target]) each.close();
  const store = await open(oldPath);
  await expectToGoOn(store, before, ids);
  await before.close();
  await store.close();
});

test.skipIf(postgres === null)(
  "PostgreSQL: a database of the first version goes on with its batches",
  async () => {
    using folder = temporaryFolder("batchd-first-");
    const [newUrl, oldUrl] = [
      await postgres!.createEmptyDatabase(),
      await postgres!.createEmptyDatabase(),
    ];
    await migrate({
      connection: { connectionString: oldUrl },
      migrationsDir: firstMigration("postgres", folder.path),
      clock: systemClock,
    });
    const before = await openStore(newUrl);
    const ids = await fill(before);
    const [source, target] = [new Client(newUrl), new Client(oldUrl)];
    for (const each of [source, target]) await each.connect();
    for (const table of TABLES) {
      const { rows } = await source.query(
        `select row_to_json(t)::text as row from ${table} as t order by sequence`,
      );
      for (const { row } of rows as { row: string }[]) {
        await target.query(
          `insert into ${table} overriding system value select * from json_populate_record(null::${table}, $1)`,
          [row],
        );
      }
      await target.query(`select setval(pg_get_serial_sequence('${table}', 'sequence'), 1000)`);
    }
    for (const each of [source, target]) await each.end();
    const store = await openStore(oldUrl);
    await expectToGoOn(store, before, ids);
    await before.close();
    await store.close();
  },
);
