/**
 * Measures claims and lists of the store on PostgreSQL with a large backlog. The plan of a claim goes to standard error.
 */
import { Client } from "pg";
import type { BatchId } from "../../src/batch/batch.ts";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import type { Store } from "../../src/store/store.ts";
import { startPostgres } from "../../test/support/postgres.ts";
import { type Figure, median, percentile } from "../figure.ts";
import type { Sizes } from "../sizes.ts";

const MODEL = "llama";
const CLAIMS = 2_000;
const LISTS = 5;

export async function measureStore({ storeBatchCount, storeChunkCount }: Sizes): Promise<Figure[]> {
  await using postgres = await startPostgres("the bench of the PostgreSQL store");
  if (postgres === null) return [];
  const url = await postgres.createDatabase();
  const opened = await openPostgresStore({ url, poolSize: 4, listens: false, clock: systemClock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  try {
    await fill(url, storeBatchCount, storeChunkCount);
    const size = `${storeBatchCount} open batches, ${storeChunkCount} open chunks`;
    const pings = await timesOf(CLAIMS, () => store.ping());
    const claims = await timesOf(CLAIMS, (n) => claim(store, (n * 7) % storeBatchCount));
    await printPlan(url);
    const lists = await timesOf(LISTS, () => store.listRunnable());
    return [
      {
        name: "claim",
        title: `Claim of a chunk on PostgreSQL, ${size}, median`,
        measured: median(claims),
        unit: "ms",
        hold: { atMost: 5 },
      },
      { name: "claim_p99", title: "The same, p99", measured: percentile(claims, 0.99), unit: "ms" },
      {
        name: "statement",
        title: "A statement that does nothing, median",
        measured: median(pings),
        unit: "ms",
      },
      {
        name: "list_runnable",
        title: "List of what can be claimed, median",
        measured: median(lists),
        unit: "ms",
      },
    ];
  } finally {
    await store.close();
  }
}

const idOf = (n: number) => `batch_${n}` as BatchId;

async function claim(store: Store, n: number): Promise<void> {
  const wanted = [{ batchId: idOf(n), model: MODEL, count: 1 }];
  const [claimed] = await store.claimChunks({ owner: "bench", ttlMs: 30_000, wanted });
  if (claimed === undefined) throw new Error(`nothing to claim in batch ${n}`);
}

async function timesOf(count: number, run: (n: number) => Promise<unknown>): Promise<number[]> {
  const times: number[] = [];
  for (let n = 0; n < count; n++) {
    const startedAtMs = performance.now();
    await run(n);
    times.push(performance.now() - startedAtMs);
  }
  return times;
}

async function withClient<T>(url: string, work: (client: Client) => Promise<T>): Promise<T> {
  const client = new Client(url);
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

/** Writes the rows directly, because a million chunks through the API take long. */
const fill = (url: string, batchCount: number, chunkCount: number) =>
  withClient(url, async (client) => {
    const chunksEach = chunkCount / batchCount;
    await client.query(`
      insert into files (id, project, purpose, filename, bytes, blob_key, sha256, created_at_ms)
      values ('file-1', 'default', 'batch', 'input.jsonl', 1, 'files/1', '', 0)`);
    await client.query(
      `insert into batches (id, project, endpoint, completion_window, input_file_id, model, status,
         priority, total_count, created_at_ms, expires_at_ms, in_progress_at_ms, has_chunks)
       select 'batch_' || n, 'default', '/v1/chat/completions', '24h', 'file-1', $1, 'in_progress',
         0, $2, 0, 4e12 + n, 1, true
       from generate_series(0, $3 - 1) as n`,
      [MODEL, chunksEach, batchCount],
    );
    await client.query(
      `insert into chunks (batch_id, number, model, line_count, extents)
       select 'batch_' || n, number, $1, 1, '[{"start":0,"end":1,"firstLine":1}]'
       from generate_series(0, $3 - 1) as n, generate_series(0, $2 - 1) as number`,
      [MODEL, chunksEach, batchCount],
    );
    await client.query("analyze");
  });

const printPlan = (url: string) =>
  withClient(url, async (client) => {
    const { rows } = await client.query<{ "QUERY PLAN": string }>(
      `explain (analyze, buffers, costs off)
       update chunks set lease_owner = 'bench', lease_expires_at_ms = 4e12, lease_epoch = lease_epoch + 1
       where sequence = (
           select sequence from chunks
           where batch_id = 'batch_77' and model = '${MODEL}' and closed_at_ms is null
             and (lease_expires_at_ms is null or lease_expires_at_ms <= (extract(epoch from now()) * 1000)::bigint)
           order by number limit 1 for update skip locked)
         and exists (
           select 1 from batches
           where id = 'batch_77' and status in ('validating', 'in_progress', 'finalizing') and stop_reason is null and in_progress_at_ms is not null and expires_at_ms > 1)`,
    );
    for (const row of rows) process.stderr.write(`    ${row["QUERY PLAN"]}\n`);
  });
