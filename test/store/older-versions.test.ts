/**
 * What versions of batchd may run beside see of the work of this one. They have the claims of their time, which cannot change any
 * more.
 */
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { systemClock } from "../../src/clock.ts";
import { MIGRATIONS_DIR, migrate } from "../../src/store/postgres/migrations.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { ANY_TURN } from "../../src/store/project-turns.ts";
import type { Store } from "../../src/store/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import {
  aBatch,
  aPlan,
  claimBy,
  claimChunk,
  finishBatch,
  insertBatch,
  NO_RESULT,
  PROJECT,
  temporaryFolder,
} from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("claims of older versions"));

/** The conditions of the claims for validation and for the end of a batch, before there were derived inputs and duplicates. */
const IS_FREE = "(lease_expires_at_ms is null or lease_expires_at_ms <= $1)";
const OLDER_CLAIMS = `
  select id from batches where status = 'validating' and stop_reason is null and ${IS_FREE}
  union all
  select id from batches as ending
  where status in ('validating', 'in_progress', 'finalizing', 'cancelling')
    and (stop_reason is not null or status = 'finalizing') and deleted_at_ms is null and ${IS_FREE}
    and not exists (select 1 from chunks where batch_id = ending.id and closed_at_ms is null)`;

describe.skipIf(postgres === null)("a replica of an older version passes over", () => {
  let store: Store & { close(): Promise<void> };
  let client: Client;
  const claimable = async () => {
    const { rows } = await client.query<{ id: BatchId }>(OLDER_CLAIMS, [Date.now()]);
    return rows.map(({ id }) => id);
  };

  beforeAll(async () => {
    const url = await postgres!.createDatabase();
    // The dates of the builders are long over by the clock of the database.
    const nowMs = () => Date.UTC(2026, 0, 5, 8);
    const opened = await openPostgresStore({
      url,
      poolSize: 2,
      listens: false,
      clock: systemClock,
      nowMs,
      onStatements: () => {},
    });
    if (!opened.ok) throw new Error(opened.problem);
    store = opened.store;
    client = new Client(url);
    await client.connect();
  });

  afterAll(async () => {
    await client.end();
    await store.close();
  });

  test("a batch whose input is still to be made, also after a release and while it is cancelled", async () => {
    const template = "{}";
    const source = {
      batchId: "batch_gone" as BatchId,
      lines: "all" as const,
      isMerged: false,
      merge: null,
      template,
    };
    const batch = aBatch({ source, isInputPending: true });
    await store.insertBatch(batch);
    expect(await claimable()).toEqual([]);
    const turn = { ...ANY_TURN, isThorough: true };
    const claimed = await store.claimBatchToDerive(claimBy("a"), turn);
    expect(claimed?.batch.id).toBe(batch.id);
    expect(await store.releaseBatchIfLeased(claimed!.lease)).toBe(true);
    expect(await claimable()).toEqual([]);
    // The one that gave the lease back holds it no more.
    expect(await store.releaseBatchIfLeased(claimed!.lease)).toBe(false);
    expect(await store.countBatchFailureIfLeased(claimed!.lease)).toBe(false);
    expect(
      (await store.renewLeases({ batches: [claimed!.lease], chunks: [] }, claimBy("a")))
        .lostBatches,
    ).toEqual([claimed!.lease]);
    expect((await store.claimBatchToDerive(claimBy("b"), turn))?.batch.id).toBe(batch.id);
    await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
    expect(await claimable()).toEqual([]);
    const ending = await store.claimBatchToFinalize(claimBy("c"));
    expect(ending?.batch.id).toBe(batch.id);
    await finishBatch(store, ending!.lease, NO_RESULT);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("cancelled");
  });

  test("a batch with lines that are not sent, from its start to its end, also after a release", async () => {
    const { batch } = await insertBatch(store, {
      deduplicated: { lineCount: 0, firstLine: null },
    });
    expect(await claimable()).toEqual([]);
    const validation = await store.claimBatchToValidate(claimBy("a"));
    const plan = { ...aPlan(["llama"]), duplicates: { lineCount: 1, firstLine: 2 } };
    expect(await store.startBatchIfLeased(validation!.lease, plan)).toBe(true);
    const chunk = await claimChunk(store);
    expect(await store.closeChunkIfLeased(chunk.lease, null)).toBe(true);
    expect(await claimable()).toEqual([]);
    const slow = await store.claimBatchToFinalize({ ...claimBy("slow"), ttlMs: 0 });
    await store.renewLeases({ batches: [slow!.lease], chunks: [] }, { owner: "slow", ttlMs: 0 });
    expect(await claimable()).toEqual([]);
    const first = await store.claimBatchToFinalize(claimBy("b"));
    expect(first?.batch.id).toBe(batch.id);
    expect(await store.claimBatchToFinalize(claimBy("c"))).toBeNull();
    await store.releaseBatchIfLeased(first!.lease);
    expect(await claimable()).toEqual([]);
    const second = await store.claimBatchToFinalize(claimBy("c"));
    await finishBatch(store, second!.lease, NO_RESULT);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("completed");
  });

  test("no other batch", async () => {
    const { batch } = await insertBatch(store);
    expect(await claimable()).toEqual([batch.id]);
  });
});

/** The migrations of the versions before the one of this name. */
function migrationsBefore(name: string, folder: string): string {
  cpSync(MIGRATIONS_DIR, folder, { recursive: true });
  const path = join(folder, "meta/_journal.json");
  const journal = JSON.parse(readFileSync(path, "utf8")) as { entries: { tag: string }[] };
  const until = journal.entries.findIndex(({ tag }) => tag.includes(name));
  writeFileSync(path, JSON.stringify({ ...journal, entries: journal.entries.slice(0, until) }));
  return folder;
}

const usedBy = (batch: string, price: string, tokens: number) => `
  insert into model_usage (batch_id, project, model, day, price, request_count, input_tokens)
  values ('batch_${batch}', 'p', 'm', '2026-01-05', '${price}', 1, ${tokens})
  on conflict (batch_id, model, day, price) do update
  set request_count = model_usage.request_count + 1, input_tokens = model_usage.input_tokens + ${tokens}`;

test.skipIf(postgres === null)(
  "the sums of usage have what older versions have counted, before and beside this one",
  async () => {
    using folder = temporaryFolder("batchd-before-sums-");
    const url = await postgres!.createEmptyDatabase();
    const connection = { connectionString: url };
    const clock = systemClock;
    const migrationsDir = migrationsBefore("usage_sums", folder.path);
    await migrate({ connection, migrationsDir, clock });
    for (const batch of ["a", "b", "c"]) await query(url, usedBy(batch, "x", 10));
    await migrate({ connection, migrationsDir: MIGRATIONS_DIR, clock });
    const sums = () =>
      query(
        url,
        `select price, sum(request_count)::int as requests, sum(input_tokens)::int as tokens from usage_sums
         where project = 'p' and day = '2026-01-05' group by price order by price`,
      );
    expect(await sums()).toEqual([{ price: "x", requests: 3, tokens: 30 }]);
    await query(url, usedBy("a", "x", 5));
    await query(url, usedBy("d", "y", 7));
    expect(await sums()).toEqual([
      { price: "x", requests: 4, tokens: 35 },
      { price: "y", requests: 1, tokens: 7 },
    ]);
    await query(url, "delete from model_usage where batch_id in ('batch_b', 'batch_d')");
    expect(await sums()).toEqual([
      { price: "x", requests: 3, tokens: 25 },
      { price: "y", requests: 0, tokens: 0 },
    ]);
  },
);

const anUpload = (id: string) => `
  insert into uploads (id, project, filename, purpose, bytes, mime_type, status, created_at_ms, expires_at_ms, has_parts)
  values ('upload_${id}', 'p', 'f', 'user_data', 9, 'x', 'pending', 1, 2, true)`;

const aPart = (id: string, upload: string, bytes: number) => `
  insert into upload_parts (id, upload_id, bytes, blob_key, created_at_ms)
  values ('part_${id}', 'upload_${upload}', ${bytes}, 'parts/part_${id}', 1)`;

test.skipIf(postgres === null)(
  "the parts of an upload have been counted that older versions have stored, before and beside this one",
  async () => {
    using folder = temporaryFolder("batchd-before-sums-");
    const url = await postgres!.createEmptyDatabase();
    const options = { connection: { connectionString: url }, clock: systemClock };
    await migrate({ ...options, migrationsDir: migrationsBefore("upload_part_sums", folder.path) });
    for (const upload of ["a", "b", "c"]) await query(url, anUpload(upload));
    for (const part of ["1", "2", "3"]) await query(url, aPart(part, "a", 10));
    await migrate({ ...options, migrationsDir: MIGRATIONS_DIR });
    await query(url, aPart("4", "a", 5));
    await query(url, aPart("5", "b", 7));
    const sums = `select part_count::int as parts, part_bytes::int as bytes from uploads order by id`;
    expect(await query(url, sums)).toEqual([
      { parts: 4, bytes: 35 },
      { parts: 1, bytes: 7 },
      { parts: 0, bytes: 0 },
    ]);
  },
);

test.skipIf(postgres === null)(
  "a migration that meets a replica in a deadlock is tried again",
  async () => {
    using folder = temporaryFolder("batchd-before-sums-");
    const url = await postgres!.createEmptyDatabase();
    const options = { connection: { connectionString: url }, clock: systemClock };
    await migrate({ ...options, migrationsDir: migrationsBefore("usage_sums", folder.path) });
    const older = new Client(url);
    await older.connect();
    try {
      await older.query("begin; lock table batches in row exclusive mode");
      const migrated = migrate({ ...options, migrationsDir: MIGRATIONS_DIR });
      const waiting = () => query(url, "select 1 from pg_locks where not granted");
      await expect.poll(waiting).toHaveLength(1);
      // The migration has locked the files. It has waited for longer, so it finds the deadlock first.
      await older.query("lock table files in row exclusive mode; commit");
      await migrated;
    } finally {
      await older.end();
    }
    expect(await query(url, "select * from usage_sums")).toEqual([]);
  },
);
