import { Client } from "pg";
import { describe, expect, test } from "vitest";
import type { Batch } from "../../src/batch/batch.ts";
import { destinationOf, newDeliveryId } from "../../src/batch/delivery.ts";
import { NO_SPENDING } from "../../src/batch/spending.ts";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { openCountedStore, startCountingPostgres } from "../support/counted-statements.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { linesInWindows, startLines } from "../support/journals.ts";
import { startPostgres } from "../support/postgres.ts";
import {
  aBatch,
  anAnnouncement,
  aResult,
  aSegment,
  claimBy,
  claimChunk,
  claimToFinalize,
  claimWebhookDeliveries,
  finalizingBatch,
  finishBatch,
  insertBatch,
  startBatch,
} from "../support/store-builders.ts";

const postgres = forAllTests(await startCountingPostgres("the count of statements"));
const openCounted = (options = {}) => openCountedStore(postgres!, options);

/** A filter that no batch matches. */
const SEARCH = {
  ...{ status: null, endpoint: null, model: null, createdAtOrAfterMs: null },
  metadata: {},
  search: "nowhere",
};

const dueDelivery = () => ({
  ...claimBy("worker"),
  busyDestinations: [],
  toClientBuckets: true,
  busyProjects: ["busy"],
  passedOver: [],
});

/** Makes many rows of the only one, or of the one that is meant. */
async function multiply(query: Query, table: string, count: number, which = ""): Promise<void> {
  const { rows } = await query(
    `select string_agg(quote_ident(column_name), ', ') as columns from information_schema.columns
     where table_name = '${table}' and column_name not in ('sequence', 'id')`,
  );
  const columns = String(rows[0]?.["columns"]);
  await query(
    `insert into ${table} (id, ${columns})
     select id || '-' || n, ${columns} from ${table}, generate_series(1, ${count}) as n ${which}`,
  );
}

type Query = (text: string) => Promise<{ readonly rows: readonly Record<string, unknown>[] }>;

describe.skipIf(postgres === null)("the statements of a process", () => {
  test("are counted as the server counts them, those of transactions included", async () => {
    await using counted = await openCounted();
    const { store } = counted;
    const { sent, run } = await counted.countOf(async () => {
      const { batch } = await startBatch(store, ["llama", "llama"]);
      const wanted = [{ batchId: batch.id, model: "llama", count: 2 }];
      const claimed = await store.claimChunks({ ...claimBy("worker"), wanted });
      for (const { lease } of claimed) {
        await store.recordSegmentIfLeased(lease, aSegment({ completed: 1 }));
        await store.closeChunkIfLeased(lease, aSegment({ completed: 9 }));
      }
      await claimToFinalize(store);
    });
    expect(run).toBeGreaterThan(10);
    expect(sent).toBe(run);
  });

  test("are one for a claim of new chunks, however many, and one for each look that finds nothing", async () => {
    await using counted = await openCounted();
    const { store } = counted;
    const batches = [];
    for (let n = 0; n < 8; n++) batches.push(await startBatch(store, ["llama", "llama"]));
    const wanted = batches.map(({ batch }) => ({ batchId: batch.id, model: "llama", count: 2 }));
    const claim = await counted.countOf(async () => {
      const claimed = await store.claimChunks({ ...claimBy("worker"), wanted });
      expect(claimed).toHaveLength(16);
    });
    expect(claim.run).toBe(1);
    const looks = await counted.countOf(async () => {
      await store.claimBatchToValidate(claimBy("worker"));
      await store.claimBatchToFinalize(claimBy("worker"));
      await store.claimBatchToDerive(claimBy("worker"));
      await claimWebhookDeliveries(store, { ...claimBy("worker"), limit: 1, maxLeased: 10 });
      await store.claimDelivery(dueDelivery());
      await store.listRunnable();
    });
    expect(looks.run).toBe(6);
    await insertBatch(store);
    expect(await store.claimBatchToValidate(claimBy("worker"))).not.toBeNull();
  });

  test("are one for a request of a project with a limit for each minute, taken or refused", async () => {
    await using counted = await openCounted();
    for (const isGranted of [true, false]) {
      const { run } = await counted.countOf(async () => {
        expect(await counted.store.takeRequest("search", 1)).toMatchObject({ isGranted });
      });
      expect(run).toBe(1);
    }
  });

  test("are one for the end of a chunk while another one of its batch is worked on", async () => {
    await using counted = await openCounted();
    const { store } = counted;
    const { batch } = await startBatch(store, ["llama", "llama", "llama"]);
    const [one, two] = [await claimChunk(store), await claimChunk(store)];
    const first = await counted.countOf(async () => {
      expect(await store.closeChunkIfLeased(one.lease, aSegment())).toBe(true);
    });
    expect(first).toMatchObject({ sent: 1, run: 1 });
    expect(await store.closeChunkIfLeased(two.lease, aSegment())).toBe(true);
    const three = await claimChunk(store);
    expect(await store.closeChunkIfLeased(three.lease, aSegment())).toBe(true);
    const scoped = { project: batch.project, id: batch.id };
    expect((await store.findBatch(scoped))?.status).toBe("finalizing");
  });

  test("read none of the batches that wait for others, however many wait for however many", async () => {
    await using counted = await openCounted();
    const { store, query } = counted;
    const source = await insertBatch(store);
    const made = { lines: "all", isMerged: false, merge: null, template: null } as const;
    const waiting = aBatch({ source: { ...made, batchId: source.batch.id }, isInputPending: true });
    await store.insertBatch(waiting);
    await multiply(query, "batches", 5_000);
    await query("update batches set is_awaited = true");
    await query("vacuum full analyze batches");
    const look = await counted.countOf(async () => {
      expect(await store.claimBatchToDerive(claimBy("worker"))).toBeNull();
    });
    expect(look.run).toBe(1);
    expect(look.pages).toBeLessThan(25);
  });

  test("read an index alone in looks that find nothing, however many batches and deliveries have ended", async () => {
    await using counted = await openCounted();
    const { store, query } = counted;
    const { batch } = await finalizingBatch(store);
    await finishBatch(store, await claimToFinalize(store));
    const ordered = { location: "share", s3: null, path: null, format: "jsonl" } as const;
    const made = { id: newDeliveryId(), credentials: null, createdAtMs: 0 };
    const delivery = { ...made, ...ordered, destination: destinationOf(ordered) };
    await store.insertDeliveryIfFinal({ project: batch.project, id: batch.id }, delivery);
    const claimed = await store.claimDelivery(dueDelivery());
    await store.endDeliveryIfLeased(claimed!.lease, { status: "delivered", address: "there" });
    await multiply(query, "batches", 5_000);
    await multiply(query, "batch_deliveries", 5_000);
    await query("update batches set has_chunks = false");
    await query("vacuum analyze");
    const looks = [
      () => store.claimBatchToValidate(claimBy("worker")),
      () => store.claimBatchToDerive(claimBy("worker")),
      () => store.claimBatchToFinalize(claimBy("worker")),
      () => claimWebhookDeliveries(store, { ...claimBy("worker"), limit: 1, maxLeased: 10 }),
      () => store.claimDelivery(dueDelivery()),
      () => store.listRunnable(),
      () => store.stopExpiredBatches(),
      () => store.settleOverlookedDeliveries(10),
      () => store.listBatchesToTidy(10),
      () => store.listDeletedBatches(10),
    ];
    for (const look of looks) {
      const { pages } = await counted.countOf(look);
      expect([String(look), pages < 25]).toEqual([String(look), true]);
    }
  });

  test("read no ended batches to find overlooked deliveries, however many deliveries wait for open batches", async () => {
    await using counted = await openCounted();
    const { store, query } = counted;
    await finalizingBatch(store);
    await finishBatch(store, await claimToFinalize(store));
    await multiply(query, "batches", 20_000);
    const { batch } = await insertBatch(store);
    await multiply(query, "batches", 5_000, `where id = '${batch.id}'`);
    await query(
      `insert into batch_deliveries (id, batch_id, project, location, destination, format, status, created_at_ms)
       select 'delivery_' || id, id, project, 'share', 'share', 'jsonl', 'pending', 0
       from batches where id like '${batch.id}%'`,
    );
    await query("vacuum analyze");
    const { pages } = await counted.countOf(async () => {
      expect(await store.settleOverlookedDeliveries(100)).toBe(0);
    });
    // A look at each ended batch reads 40,000.
    expect(pages).toBeLessThan(3_000);
  });

  test("read a few pages for lists, claims and quotas, however many batches are deleted, open or have used something", async () => {
    await using counted = await openCounted();
    const { store, query } = counted;
    const { batch } = await finalizingBatch(store);
    await multiply(query, "batches", 5_000);
    await query("update batches set deleted_at_ms = 1, project = 'gone'");
    await startBatch(store);
    const { lease } = await claimChunk(store);
    await multiply(query, "batches", 5_000, "where deleted_at_ms is null");
    await query(
      `insert into model_usage (batch_id, project, model, day, price, request_count, input_tokens)
       select 'batch_' || n, '${batch.project}', 'm', '2026-01-' || lpad((1 + n % 28)::text, 2, '0'), '', 1, 1
       from generate_series(1, 10000) as n`,
    );
    await query(
      `insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms)
       select 'file-' || n, '${batch.project}', 'batch', 'a', 1, '', 'files/' || n, 1 from generate_series(1, 5000) as n`,
    );
    await query(
      "update files set deleted_at_ms = 1 where id in (select id from files order by id desc limit 100)",
    );
    await query("vacuum analyze");
    const page = { project: batch.project, limit: 20, after: null };
    const quotas = { tokensPerDay: 1_000_000, costPerMonth: "1000" };
    const batchQuotas = { ...quotas, openBatches: 100_000, files: null, storedBytes: null };
    const reservation = { inFlight: NO_SPENDING, needed: NO_SPENDING, wanted: NO_SPENDING };
    const looks: [number, () => Promise<unknown>][] = [
      [50, () => store.listBatches({ ...page, project: "gone" })],
      [100, () => store.listBatches(page)],
      [25, () => store.claimBatchToFinalize(claimBy("worker"))],
      [250, () => store.reserveIfLeased(lease, { project: batch.project, quotas, ...reservation })],
      [250, () => store.insertBatch(aBatch(), { quotas: batchQuotas })],
      // Each of the 100 deleted files is looked up at five places.
      [1_200, () => store.sumStored(batch.project)],
      [1_200, () => store.listUnusedFiles(10)],
    ];
    for (const [limit, look] of looks) {
      const { pages } = await counted.countOf(look);
      expect([String(look), pages < limit]).toEqual([String(look), true]);
    }
  });

  test("read a few pages for an event, and for the end of a batch, however many events wait for a webhook", async () => {
    await using counted = await openCounted();
    const { store, query } = counted;
    const { batch } = await finalizingBatch(store);
    const announcements = [anAnnouncement()];
    await finishBatch(store, await claimToFinalize(store), aResult({ announcements }));
    await multiply(query, "batches", 20_000);
    await query(
      `insert into deliveries (webhook_id, event_id, webhook, batch_id, project, status, created_at_ms, next_attempt_at_ms)
       select 'wh_' || batches.id, event_id, webhook, batches.id, batches.project, deliveries.status, 0, 0
       from batches, deliveries where batches.id like '%-%'`,
    );
    await query("vacuum analyze");
    const claim = { ...claimBy("worker"), limit: 1, maxLeased: 2 };
    for (let n = 0; n < 2; n++) {
      const { pages } = await counted.countOf(() => claimWebhookDeliveries(store, claim));
      expect(pages).toBeLessThan(100);
    }
    expect(await claimWebhookDeliveries(store, claim)).toEqual([]);
    const scoped = { project: batch.project, id: batch.id };
    const { pages } = await counted.countOf(async () => {
      await store.deleteBatchIfPresent(scoped, { withInput: false });
      await store.forgetBatch(batch.id);
    });
    expect(pages).toBeLessThan(300);
  });

  test("are as many for lines in the middle of 20,000 chunks as for the lines of a few", async () => {
    await using counted = await openCounted();
    const { store } = counted;
    const modelsOf = (count: number) =>
      Array.from({ length: count }, (_, i) => (i < count / 9 ? "early" : i % 2 === 0 ? "a" : "b"));
    const start = (count: number) => startLines(store, modelsOf(count), { maxLines: 1 });
    const [short, long] = [await start(40), await start(20_000)];
    const lookAt = (batch: Batch, afterLine: number) =>
      counted.countOf(async () => {
        const query = { afterLine, untilLine: afterLine + 1, part: "all" as const, store };
        const { lines } = await linesInWindows(batch, query);
        expect(lines[0]).toBe(afterLine + 1);
      });
    const few = await lookAt(short, 20);
    const many = await lookAt(long, 10_000);
    expect(many.run).toBe(few.run);
    expect(many.run).toBeLessThan(10);
    // The place is found by halves, so it costs a few pages more. The chunks alone have 300.
    expect(many.pages).toBeLessThan(200);
  });

  test("are as many for two failed lines of 5,000 chunks, all of them written, as for two of a few", async () => {
    await using counted = await openCounted();
    const { store } = counted;
    const start = async (count: number) => {
      const models = Array.from({ length: count }, () => "a");
      const batch = await startLines(store, models, { maxLines: 1 });
      await counted.query(`
        insert into segments (batch_id, chunk_number, blob_key, bytes, crc32, completed_count, failed_count)
        select batch_id, number, batch_id || number, 1, 1, 1, (number in (${count / 2}, ${count - 2}))::int
        from chunks where batch_id = '${batch.id}'`);
      await counted.query("analyze segments");
      return batch;
    };
    const [short, long] = [await start(40), await start(5_000)];
    const lookAt = (batch: Batch, count: number) =>
      counted.countOf(async () => {
        const query = { afterLine: 0, part: "failed" as const, store };
        const { lines } = await linesInWindows(batch, query);
        expect(lines).toEqual([1, count / 2 + 1, count - 1]);
      });
    const few = await lookAt(short, 40);
    const many = await lookAt(long, 5_000);
    expect(many.run).toBe(few.run);
    expect(many.run).toBeLessThan(12);
    // The segments alone have more.
    expect(many.pages).toBeLessThan(200);
  });

  test("of a search leave its only connection to others between two steps", async () => {
    await using counted = await openCounted({ poolSize: 1 });
    const { store, query } = counted;
    const { batch } = await insertBatch(store);
    await multiply(query, "batches", 5_000);
    const { id, project } = batch;
    const ended: string[] = [];
    const search = store.listBatches({ project, limit: 1, after: null, filter: SEARCH });
    const look = store.findBatch({ project, id });
    await Promise.all([
      search.then(() => ended.push("search")),
      look.then(() => ended.push("look")),
    ]);
    expect(ended).toEqual(["look", "search"]);
  });

  test("look up the files of the batches that a search passes, and never read all files", async () => {
    const plans: string[] = [];
    const settings = [
      "shared_preload_libraries=auto_explain,pg_stat_statements",
      "auto_explain.log_min_duration=0",
    ];
    await using explained = (await startPostgres("plans", {
      settings,
      onLog: (line) => plans.push(line),
    }))!;
    const url = await explained.createDatabase();
    const clock = systemClock;
    const opened = await openPostgresStore({ url, poolSize: 2, listens: false, clock });
    if (!opened.ok) throw new Error(opened.problem);
    await using ends = new AsyncDisposableStack();
    ends.defer(() => opened.store.close());
    const client = new Client(url);
    ends.defer(() => client.end());
    await client.connect();
    const { batch } = await insertBatch(opened.store);
    await multiply((text) => client.query(text), "batches", 20_000);
    await client.query(
      `insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms)
       select 'file-' || n, 'p', 'batch', 'a', 1, '', 'files/' || n, 1 from generate_series(1, 20000) as n`,
    );
    await client.query("analyze");
    await opened.store.listBatches({
      project: batch.project,
      limit: 1,
      after: null,
      filter: SEARCH,
    });
    await expect.poll(() => plans.join("\n")).toMatch(/Index Scan using files_id on files/);
    expect(plans.join("\n")).not.toContain("Seq Scan on files");
  });
});
