/**
 * What versions of batchd may run beside see of the work of this one. They have the claims of their time, which cannot change any
 * more.
 */
import { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import type { Store } from "../../src/store/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import {
  aBatch,
  aPlan,
  claimBy,
  claimChunk,
  finishBatch,
  insertBatch,
  NO_RESULT,
  PROJECT,
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
    const claimed = await store.claimBatchToDerive(claimBy("a"));
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
    expect((await store.claimBatchToDerive(claimBy("b")))?.batch.id).toBe(batch.id);
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
