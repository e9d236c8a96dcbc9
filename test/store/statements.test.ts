import { Client } from "pg";
import { afterAll, describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { startPostgres } from "../support/postgres.ts";
import {
  aSegment,
  claimBy,
  claimToFinalize,
  insertBatch,
  startBatch,
} from "../support/store-builders.ts";

const postgres = await startPostgres("the count of statements", {
  settings: ["shared_preload_libraries=pg_stat_statements"],
});
afterAll(async () => {
  await postgres?.[Symbol.asyncDispose]();
});

/** Counts statements where they are sent, and where they are run. */
async function openCounted() {
  const url = await postgres!.createDatabase();
  let sentCount = 0;
  const onStatements = (count: number) => {
    sentCount += count;
  };
  // The dates of the builders are long over by the clock of the database.
  const nowMs = () => Date.UTC(2026, 0, 5, 8);
  const opened = await openPostgresStore({
    ...{ url, poolSize: 2, listens: false, clock: systemClock, nowMs, onStatements },
  });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const client = new Client(url);
  await client.connect();
  await client.query("create extension pg_stat_statements");
  return {
    store,
    /** Returns the statements of `work`, as the process and as the server count them. */
    countOf: async (work: () => Promise<unknown>) => {
      await client.query("select pg_stat_statements_reset()");
      const before = sentCount;
      await work();
      const { rows } = await client.query<{ calls: string }>(
        `select sum(calls) as calls from pg_stat_statements
         where dbid = (select oid from pg_database where datname = current_database())
           and query not like '%pg_stat_statements%'`,
      );
      return { sent: sentCount - before, run: Number(rows[0]?.calls ?? 0) };
    },
    async [Symbol.asyncDispose]() {
      await client.end();
      await store.close();
    },
  };
}

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
      await store.claimDeliveries({ ...claimBy("worker"), limit: 1, busyWebhooks: [] });
      await store.listRunnable();
    });
    expect(looks.run).toBe(4);
    await insertBatch(store);
    expect(await store.claimBatchToValidate(claimBy("worker"))).not.toBeNull();
  });
});
