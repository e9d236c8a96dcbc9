import { sql } from "drizzle-orm";
import { describe, expect, test } from "vitest";
import type { ModelUsage } from "../../src/batch/model-usage.ts";
import { amountOf } from "../../src/batch/price.ts";
import { NO_SPENDING } from "../../src/batch/spending.ts";
import { systemClock } from "../../src/clock.ts";
import { IdempotencyKeyLost } from "../../src/store/idempotency.ts";
import type { ChunkLease } from "../../src/store/leases.ts";
import { connectionOf } from "../../src/store/postgres/connection.ts";
import { Database } from "../../src/store/postgres/database.ts";
import { CLAIM, claimOne, dueDelivery, scoped } from "../support/delivery-builders.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query } from "../support/postgres.ts";
import {
  aBatch,
  aFile,
  anAnnouncement,
  anUpload,
  aPart,
  aReceipt,
  aResult,
  aSegment,
  claimBy,
  claimChunk,
  claimToFinalize,
  claimWebhookDeliveries,
  finalizingBatch,
  finishBatch,
  insertBatch,
  insertFile,
  LEASE_TTL_MS,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import { connect, isWaitedFor, openStore, PostgresStores } from "./opened-postgres.ts";

const postgres = forAllTests(
  await PostgresStores.start("the tests of the transactions of PostgreSQL"),
);
const open = () => postgres!.open();

/** A table that counts what was committed, and how often each way to use the database ran. */
async function openCounter() {
  const url = await postgres!.createEmptyDatabase();
  await query(url, "create table runs (n int)");
  const db = new Database(connectionOf({ url, poolSize: 2 }), { clock: systemClock });
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

  test("what the code itself throws rolls back, comes out as it is, and leaves the connection usable", async () => {
    const { store } = await open();
    const { batch } = await insertBatch(store);
    const again = { ...batch, id: `${batch.id}x` as typeof batch.id };
    await expect(store.insertBatch(again, { receipt: aReceipt() })).rejects.toThrow(
      IdempotencyKeyLost,
    );
    expect(await store.findBatch(again)).toBeNull();
    await expect(store.insertBatch(batch)).rejects.toMatchObject({ code: "STORE_REFUSAL" });
  });
}

function testDeliveries(): void {
  test("deliveries of batches that a replica without deliveries has ended become due, a page at a time", async () => {
    const { store } = await open();
    const ids = [];
    for (let n = 0; n < 2; n++) ids.push((await dueDelivery(store)).delivery.id);
    expect(await store.settleOverlookedDeliveries(10)).toBe(0);
    const { admin } = await postgres!.shared();
    await admin.query("update batch_deliveries set due_at_ms = null, next_attempt_at_ms = null");
    expect(await store.claimDelivery(CLAIM)).toBeNull();
    for (const id of ids) {
      expect(await store.settleOverlookedDeliveries(1)).toBe(1);
      expect(await store.claimDelivery(CLAIM)).toMatchObject({ delivery: { id } });
    }
    expect(await store.settleOverlookedDeliveries(1)).toBe(0);
  });

  test("a batch is deleted although the end of its delivery commits meanwhile", async () => {
    const { store } = await open();
    const { url } = await postgres!.shared();
    const { batch } = await dueDelivery(store);
    await claimOne(store);
    await using admin = await connect(url);
    await admin.query("begin");
    await admin.query(
      `update batch_deliveries set status = 'delivered', address = 's3://b', ended_at_ms = 1,
         next_attempt_at_ms = null, lease_owner = null, lease_expires_at_ms = null`,
    );
    const deleted = store.deleteBatchIfPresent(scoped(batch.id), { withInput: false });
    await isWaitedFor(admin);
    await admin.query("commit");
    expect(await deleted).toBe(true);
    await store.forgetBatch(batch.id);
    expect((await admin.query("select from batch_deliveries")).rowCount).toBe(0);
  });
}

function testTimeouts(): void {
  test("a statement that is not waited for any more ends on the server, too", async () => {
    const url = await postgres!.createEmptyDatabase();
    const connection = { ...connectionOf({ url, poolSize: 2 }), query_timeout: 300 };
    const db = new Database(connection, { clock: systemClock });
    const slow = db.read((each) => each.execute(sql`select pg_sleep(3600)`));
    await expect(slow).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    const running = `select 1 from pg_stat_activity
      where datname = current_database() and state = 'active' and query like '%pg_sleep(3600)%'
        and pid <> pg_backend_pid()`;
    await expect.poll(() => query(url, running)).toEqual([]);
    await db.close();
  });
}

function testIntents(): void {
  test("the intents of a batch are locked in one order at its end, and renewals wait for none", async () => {
    const { store } = await open();
    const { url } = await postgres!.shared();
    const [first, last] = [aFile(), aFile()].sort((a, b) => (a.blobKey < b.blobKey ? -1 : 1));
    await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    // The rows lie in the other order than their keys.
    for (const { blobKey } of [last!, first!]) await store.declareBlobs([blobKey], 60_000);
    await using admin = await connect(url);
    await admin.query("begin");
    const lock = "select 1 from blob_intents where blob_key = $1 for update nowait";
    await admin.query(lock, [first!.blobKey]);
    await store.renewIntents([last!.blobKey, first!.blobKey], 60_000);
    const done = store.finishBatchIfLeased(lease, {
      output: last!,
      error: first!,
      failures: [],
      lostBlobKeys: [],
      unusedBlobKeys: [],
      announcements: [],
      counts: { completed: 1, failed: 0 },
    });
    await isWaitedFor(admin);
    expect((await admin.query(lock, [last!.blobKey])).rowCount).toBe(1);
    await admin.query("commit");
    await done;
    expect(await store.findFile(last!)).not.toBeNull();
  });
}

function testRenewals(): void {
  test("renewals that overlap lock the rows of their leases in one order", async () => {
    const { store } = await open();
    const { url } = await postgres!.shared();
    for (let n = 0; n < 2; n++) await startBatch(store);
    const chunks = [(await claimChunk(store)).lease, (await claimChunk(store)).lease];
    for (let n = 0; n < 2; n++) await insertBatch(store);
    const claim = async () => (await store.claimBatchToValidate(claimBy("validator")))!.lease;
    const batches = [await claim(), await claim()];
    const none = { batches: [], chunks: [] };
    for (const { table, id, leases, held } of [
      {
        table: "chunks",
        id: "batch_id",
        leases: chunks,
        held: { ...none, chunks: chunks.toReversed() },
      },
      {
        table: "batches",
        id: "id",
        leases: batches,
        held: { ...none, batches: batches.toReversed() },
      },
    ]) {
      await using admin = await connect(url);
      await admin.query("begin");
      const lock = `select 1 from ${table} where ${id} = $1 for update nowait`;
      const [first, last] = leases.map(({ batchId }) => batchId);
      await admin.query(lock, [first]);
      const renewed = store.renewLeases(held, claimBy("worker"));
      await isWaitedFor(admin);
      expect((await admin.query(lock, [last])).rowCount).toBe(1);
      await admin.query("commit");
      expect(await renewed).toMatchObject({ lostBatches: [], lostChunks: [] });
    }
  });
}

function testConnections(): void {
  test("files, batches and parts that wait for a lock of their project leave connections to everyone else", async () => {
    const { store } = await open();
    const { url } = await postgres!.shared();
    const upload = anUpload();
    await store.insertUpload(upload);
    const file = aFile();
    await insertFile(store, file);
    const parts = Array.from({ length: 6 }, () => aPart(upload));
    for (const { blobKey } of parts) await store.declareBlobs([blobKey], LEASE_TTL_MS);
    const limit = { project: PROJECT, quotas: { storedBytes: 1_000_000 } };
    await using admin = await connect(url);
    await admin.query("begin");
    await admin.query("select from project_locks for update");
    const inserted = parts.flatMap((part) => [
      insertFile(store, aFile()),
      store.insertBatch(aBatch({ inputFileId: file.id })),
      store.insertPartIfPending(part, limit),
    ]);
    await isWaitedFor(admin);
    expect((await store.findFile(file))?.id).toBe(file.id);
    await admin.query("commit");
    await Promise.all(inserted);
    expect(await inserted.at(-1)).toBe("stored");
  });
}

function testBudgets(): void {
  test("chunks that wait for the decisions of their project leave connections to everyone else", async () => {
    const { store } = await open();
    const { url } = await postgres!.shared();
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
    const { store } = await open();
    const { url } = await postgres!.shared();
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

/** An answer at each of two prices, in an order that a batch may have for itself. */
const atTwoPrices = (isTurned: boolean): ModelUsage[] => {
  const used = ["1", "2"].map(
    (input): ModelUsage => ({
      model: `model-${input}`,
      day: new Date(NOW_MS).toISOString().slice(0, 10),
      requestCount: 1,
      inputTokens: 10,
      cachedTokens: 0,
      outputTokens: 0,
      price: { currency: "USD", per: 1, input, cachedInput: "0", output: "0", perRequest: "0" },
    }),
  );
  return isTurned ? used.toReversed() : used;
};

function testUsageSums(): void {
  test("200 segments that two replicas commit at once are in the sums of their project, without a deadlock", async () => {
    const url = await postgres!.createDatabase();
    await using one = await openStore(url);
    await using other = await openStore(url);
    // Commits that lock the sums in different orders meet.
    await query(
      url,
      `create function linger() returns trigger language plpgsql as
         $$ begin perform pg_sleep(0.01); return null; end $$;
       create trigger linger after insert or update on usage_sums for each row execute function linger()`,
    );
    const leases: ChunkLease[] = [];
    for (let n = 0; n < 20; n++) {
      await startBatch(one);
      leases.push((await claimChunk(one)).lease);
    }
    const commits = Array.from({ length: 200 }, async (_, n) => {
      const segment = aSegment({ modelUsage: atTwoPrices(n % 3 === 0) });
      const store = n % 2 === 0 ? one : other;
      const isCounted = await store.recordSegmentIfLeased(leases[n % leases.length]!, segment);
      const quotas = { tokensPerDay: 4_000, costPerMonth: null };
      const spending = { inFlight: NO_SPENDING, needed: NO_SPENDING, wanted: NO_SPENDING };
      await store.reserveIfLeased(leases[n % 20]!, { project: PROJECT, quotas, ...spending });
      return isCounted;
    });
    expect(new Set(await Promise.all(commits))).toEqual(new Set([true]));
    const sumsIn = (table: string) =>
      query(
        url,
        `select day, price, sum(request_count)::int as requests, sum(input_tokens)::int as tokens
         from ${table} group by day, price order by price`,
      );
    const sums = await sumsIn("usage_sums");
    expect(sums).toMatchObject([
      { requests: 200, tokens: 2_000 },
      { requests: 200, tokens: 2_000 },
    ]);
    expect(sums).toEqual(await sumsIn("model_usage"));
    const [row] = await query(
      url,
      "select deadlocks::int from pg_stat_database where datname = current_database()",
    );
    expect(row).toEqual({ deadlocks: 0 });
    // All tokens of the day are used up, and a decision knows it.
    const quotas = { tokensPerDay: 4_000, costPerMonth: null };
    const line = { tokens: 1, cost: 0n };
    const asked = { inFlight: NO_SPENDING, needed: line, wanted: line };
    const decision = other.reserveIfLeased(leases[0]!, { project: PROJECT, quotas, ...asked });
    expect(await decision).toMatchObject({ kind: "exhausted", reason: "tokens_per_day" });
  });
}

function testWebhookClaims(): void {
  test("claims of deliveries to a webhook whose commits overlap take no more than may be under way", async () => {
    const url = await postgres!.createDatabase();
    await using store = await openStore(url);
    await finalizingBatch(store);
    const announcements = Array.from({ length: 6 }, () => anAnnouncement());
    await finishBatch(store, await claimToFinalize(store), aResult({ announcements }));
    await query(
      url,
      `create function wait() returns trigger language plpgsql as
         $$ begin perform pg_advisory_xact_lock_shared(42); return null; end $$;
       create constraint trigger wait after update on deliveries deferrable initially deferred
         for each row execute function wait()`,
    );
    await using admin = await connect(url);
    await admin.query("select pg_advisory_lock(42)");
    const claims = Array.from({ length: 4 }, (_, n) =>
      claimWebhookDeliveries(store, { ...claimBy(`sender-${n}`), limit: 1, maxLeased: 2 }),
    );
    const waiting = "select distinct pid from pg_locks where not granted";
    await expect.poll(async () => (await admin.query(waiting)).rowCount).toBe(claims.length);
    await admin.query("select pg_advisory_unlock(42)");
    expect((await Promise.all(claims)).flat()).toHaveLength(2);
  });
}

describe.skipIf(postgres === null)("on PostgreSQL", () => {
  describe("webhooks", testWebhookClaims);
  describe("repeating", testRepeating);
  describe("deliveries", testDeliveries);
  describe("timeouts", testTimeouts);
  describe("intents", testIntents);
  describe("renewals", testRenewals);
  describe("connections", testConnections);
  describe("budgets", testBudgets);
  describe("sums of usage", testUsageSums);
});
