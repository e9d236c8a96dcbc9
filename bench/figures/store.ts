/**
 * Measures claims and lists of the store on PostgreSQL with a large backlog. The plans of the very statements go to
 * standard error, by `auto_explain`.
 */
import { setTimeout as delay } from "node:timers/promises";
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
/** The chunks of a claim for many small batches. */
const SEVERAL = 16;
/** The replicas of a large fleet, and how many of them renew at the same time. */
const REPLICAS = 1_000;
const RENEWALS = 200;
const RENEWING = 4;
const REPORT = JSON.stringify({ throughput: "x".repeat(500) });
const SETTINGS = ["session_preload_libraries=auto_explain"];
/** The log of the server arrives a little later. */
const PLANS_AFTER_MS = 1_000;

export async function measureStore({ storeBatchCount, storeChunkCount }: Sizes): Promise<Figure[]> {
  const log: string[] = [];
  await using postgres = await startPostgres("the bench of the PostgreSQL store", {
    settings: SETTINGS,
    onLog: (line) => log.push(line),
  });
  if (postgres === null) return [];
  const url = await postgres.createDatabase();
  const opened = await openPostgresStore({ url, poolSize: 5, listens: false, clock: systemClock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  try {
    await fill(url, storeBatchCount, storeChunkCount);
    const figures = [
      ...(await measureClaims(store, { storeBatchCount, storeChunkCount })),
      ...(await measureRenewals(store, url)),
      await measureChunkBytes(url, storeChunkCount),
    ];
    await printPlans(url, log, async () => {
      await claim(store, severalOf(0, storeBatchCount));
      await store.listRunnable();
    });
    return figures;
  } finally {
    await store.close();
  }
}

async function measureClaims(
  store: Store,
  { storeBatchCount, storeChunkCount }: Pick<Sizes, "storeBatchCount" | "storeChunkCount">,
): Promise<Figure[]> {
  const size = `${storeBatchCount} open batches, ${storeChunkCount} open chunks`;
  const pings = await timesOf(CLAIMS, () => store.ping());
  const claims = await timesOf(CLAIMS, (n) => claim(store, [(n * 7) % storeBatchCount]));
  const several = await timesOf(CLAIMS / SEVERAL, (n) =>
    claim(store, severalOf(n, storeBatchCount)),
  );
  const lists = await timesOf(LISTS, () => store.listRunnable());
  const inMs = (name: string, title: string, measured: number): Figure => ({
    name,
    title,
    measured,
    unit: "ms",
  });
  return [
    {
      ...inMs("claim", `Claim of a chunk on PostgreSQL, ${size}, median`, median(claims)),
      hold: { atMost: 5 },
    },
    inMs("claim_p99", "  The same, p99", percentile(claims, 0.99)),
    inMs("claim_several", `  ${SEVERAL} chunks of as many batches in one claim`, median(several)),
    inMs("statement", "  A statement that does nothing", median(pings)),
    inMs("list_runnable", "  List of what can be claimed", median(lists)),
  ];
}

const idOf = (n: number) => `batch_${n}` as BatchId;

/** Returns the numbers of the batches of one claim of several chunks. */
const severalOf = (n: number, batchCount: number): number[] =>
  Array.from({ length: SEVERAL }, (_, i) => (n * SEVERAL + i) % batchCount);

async function claim(store: Store, of: readonly number[]): Promise<void> {
  const wanted = of.map((n) => ({ batchId: idOf(n), model: MODEL, count: 1 }));
  const claimed = await store.claimChunks({ owner: "bench", ttlMs: 30_000, wanted });
  if (claimed.length !== of.length) throw new Error(`nothing to claim in a batch of ${of}`);
}

/** Lets many replicas renew their claims, some at the same time, as they do in a fleet. */
async function measureRenewals(store: Store, url: string): Promise<Figure[]> {
  const times: number[] = [];
  const needs = [{ target: "gpu", limit: 10 * REPLICAS, wanted: 10, held: 10 }];
  const renew = async (n: number) => {
    const startedAtMs = performance.now();
    const replica = { owner: `replica-${n}`, ttlMs: 60_000, report: REPORT, mayKeepHouse: true };
    await store.renewReplica(replica, needs);
    times.push(performance.now() - startedAtMs);
  };
  await withClient(url, (client) =>
    client.query(
      `insert into replicas (owner, report, may_keep_house, expires_at_ms)
       select 'replica-' || n, $1, true, 4e12 from generate_series(0, $2 - 1) as n`,
      [REPORT, REPLICAS],
    ),
  );
  const startedAtMs = performance.now();
  let next = 0;
  const renewSome = async () => {
    while (next < RENEWALS) await renew(next++);
  };
  await Promise.all(Array.from({ length: RENEWING }, renewSome));
  const perSecond = (RENEWALS / (performance.now() - startedAtMs)) * 1000;
  const title = `Renewal of one of ${REPLICAS} replicas, ${RENEWING} at a time, median`;
  return [
    { name: "renewal", title, measured: median(times), unit: "ms" },
    { name: "renewals", title: "  Renewals a second", measured: perSecond, unit: "requests" },
  ];
}

const measureChunkBytes = (url: string, chunkCount: number): Promise<Figure> =>
  withClient(url, async (client) => {
    const { rows } = await client.query<{ bytes: string }>(
      "select pg_total_relation_size('chunks') as bytes",
    );
    const measured = Number(rows[0]?.bytes) / chunkCount;
    return {
      name: "chunk_bytes",
      title: "Row and index entries of a chunk",
      measured,
      unit: "bytes",
    };
  });

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

/** Prints the plans of the statements that `run` sends. */
const printPlans = (url: string, log: string[], run: () => Promise<void>) =>
  withClient(url, async (client) => {
    await client.query("alter system set auto_explain.log_analyze = on");
    await client.query("alter system set auto_explain.log_min_duration = 0");
    await client.query("select pg_reload_conf()");
    await delay(PLANS_AFTER_MS);
    log.length = 0;
    await run();
    await delay(PLANS_AFTER_MS);
    process.stderr.write(`${log.join("\n")}\n`);
  });
