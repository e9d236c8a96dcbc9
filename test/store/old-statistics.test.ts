/** Statements on tables of which PostgreSQL knows nothing, or believes that they are empty, as they were when it last looked. */
import { describe, expect, test } from "vitest";
import { NO_SPENDING } from "../../src/batch/spending.ts";
import type { ChunkLease } from "../../src/store/leases.ts";
import { DEFAULT_RULES } from "../../src/store/projects.ts";
import type { Store } from "../../src/store/store.ts";
import { openCountedStore, startCountingPostgres } from "../support/counted-statements.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { aSegment, claimBy, startBatch } from "../support/store-builders.ts";

const postgres = forAllTests(
  await startCountingPostgres("statements with old statistics", ["autovacuum_naptime=1s"]),
);

const ROWS = 2_000;
const PROJECT = "gone";
const insert = (table: string, columns: string, values: string, count = ROWS) =>
  `insert into ${table} (${columns}) select ${values} from generate_series(1, ${count}) as n`;

const FILE_COLUMNS = "id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms";
const FILE = `'file-' || n, '${PROJECT}', 'batch', 'f', 1, '', 'files/' || n, 1`;
const UPLOAD_COLUMNS =
  "id, project, filename, purpose, bytes, mime_type, created_at_ms, expires_at_ms, status";
const UPLOAD = `'upload_' || n, '${PROJECT}', 'f', 'batch', 1, 'x', 1, 1`;

interface Work {
  readonly name: string;
  readonly table: string;
  readonly fill: string;
  readonly run: (store: Store) => Promise<unknown>;
  /** The pages that it may read; some for each row when it is left out. */
  readonly most?: number;
}

async function purge(store: Store): Promise<void> {
  await store.putProjectUnlessDeleted({ name: PROJECT, rules: DEFAULT_RULES, createdAtMs: 1 });
  await store.beginDeletingProjectIfPresent(PROJECT);
  await store.purgeProject(PROJECT);
}

const WORKS: readonly Work[] = [
  {
    name: "the expiry of files",
    table: "files",
    fill: insert("files", `${FILE_COLUMNS}, expires_at_ms`, `${FILE}, 1`),
    run: async (store) => expect(await store.deleteExpiredFiles()).toHaveLength(500),
  },
  {
    name: "the expiry of uploads",
    table: "uploads",
    fill: insert("uploads", UPLOAD_COLUMNS, `${UPLOAD}, 'pending'`),
    run: async (store) => expect(await store.expireUploads()).toHaveLength(500),
  },
  {
    name: "the removal of ended uploads",
    table: "uploads",
    fill: insert("uploads", UPLOAD_COLUMNS, `${UPLOAD}, 'cancelled'`),
    run: (store) => store.forgetUploads(),
  },
  {
    name: "the end of windows",
    table: "batches",
    fill: insert(
      "batches",
      "id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms",
      `'batch_' || n, '${PROJECT}', '/v1/chat/completions', 'file-x', 'validating', 1, 1`,
    ),
    run: async (store) => expect((await store.stopExpiredBatches()).length).toBeLessThan(ROWS),
  },
  {
    name: "the removal of keys of requests",
    table: "idempotency_keys",
    fill: insert(
      "idempotency_keys",
      "project, key, created_at_ms, fingerprint, answer",
      `'${PROJECT}', 'key-' || n, 1, 'f', 'a'`,
    ),
    run: (store) => store.forgetIdempotencyKeys(),
  },
  {
    name: "the removal of tombstones",
    table: "tombstones",
    fill: insert(
      "tombstones",
      "list, project, id, place, created_at_ms",
      `'files', '${PROJECT}', 'file-' || n, n, 1`,
    ),
    run: (store) => store.forgetTombstones(),
  },
  {
    name: "the end of intents",
    table: "blob_intents",
    fill: insert("blob_intents", "blob_key, expires_at_ms", "'files/' || n, 1"),
    run: async (store) => expect(await store.revokeExpiredIntents(100)).toHaveLength(100),
  },
  {
    name: "the deletion of a project",
    table: "files",
    fill: insert("files", FILE_COLUMNS, FILE),
    run: purge,
  },
  {
    name: "a list",
    table: "batches",
    fill: insert(
      "batches",
      "id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms, failed_at_ms",
      `'batch_' || n, '${PROJECT}', '/v1/chat/completions', 'file-x', 'failed', 1, 1, 1`,
    ),
    run: (store) => store.listBatches({ project: PROJECT, limit: 100, after: null }),
    most: 100,
  },
];

describe.skipIf(postgres === null)("where PostgreSQL knows of no row of a table", () => {
  test.each(WORKS)(
    "$name reads no row of 2,000 again and again, and no page has more rows than it may",
    async ({ table, fill, run, most = 30 * ROWS }) => {
      await using counted = await openCountedStore(postgres!);
      const { store, query } = counted;
      await query(`alter table ${table} set (autovacuum_enabled = false)`);
      await query(fill);
      await query(`delete from ${table}`);
      await query(`vacuum (truncate off, analyze) ${table}`);
      await query(fill);
      const { pages } = await counted.countOf(() => run(store));
      expect(pages).toBeLessThan(most);
    },
  );
});

const MANY = 20_000;
const QUOTAS = { tokensPerDay: 1_000_000, costPerMonth: null };
const NOTHING = { inFlight: NO_SPENDING, needed: NO_SPENDING, wanted: NO_SPENDING };

test.skipIf(postgres === null)(
  "before PostgreSQL has looked at any table, the steps of a chunk read none of the open batches of others",
  async () => {
    await using counted = await openCountedStore(postgres!);
    const { store, query } = counted;
    await query("alter table batches set (autovacuum_enabled = false)");
    await query("alter table chunks set (autovacuum_enabled = false)");
    const columns =
      "id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms, in_progress_at_ms, paused_at_ms, pause_reason";
    const values = `'batch_' || n, 'other', '/v1/chat/completions', 'file-x', 'in_progress', 1, 9e15, 1, 1, 'requested'`;
    await query(insert("batches", columns, values, MANY));
    const ofChunks = "batch_id, number, model, line_count, extents";
    await query(insert("chunks", ofChunks, `'batch_' || n, 0, 'llama', 1, '[]'`, MANY));
    const { batch } = await startBatch(store, ["llama"]);
    const { id: batchId, project } = batch;
    const wanted = [{ batchId, model: "llama", count: 1 }];
    let lease: ChunkLease | undefined;
    const reservation = { project, quotas: QUOTAS, ...NOTHING };
    const steps = [
      async () => {
        const [claimed] = await store.claimChunks({ ...claimBy("worker"), wanted });
        lease = claimed!.lease;
      },
      async () => {
        const { kind } = await store.reserveIfLeased(lease!, reservation);
        expect(kind).toBe("granted");
      },
      async () => expect(await store.closeChunkIfLeased(lease!, aSegment())).toBe(true),
      async () => expect(await store.closeUnheldChunks()).toBe(0),
    ];
    for (const step of steps) {
      const { pages } = await counted.countOf(step);
      expect([String(step), pages < 200]).toEqual([String(step), true]);
    }
    expect((await store.findBatch({ project, id: batchId }))?.status).toBe("finalizing");
  },
);

const ENDED = 50_000;
const COME = 3_000;

test.skipIf(postgres === null)(
  "where PostgreSQL looked at many ended batches last, those that come are soon claimed without a look at all of them",
  async () => {
    await using counted = await openCountedStore(postgres!);
    const { store, query } = counted;
    const columns =
      "id, project, endpoint, input_file_id, created_at_ms, expires_at_ms, status, failed_at_ms";
    const values = (id: string, state: string) =>
      `'${id}_' || n, 'project-' || n % 100, '/v1/chat/completions', 'file-' || n, n, 9e12 + n, ${state}`;
    await query(insert("batches", columns, values("ended", "'failed', n"), ENDED));
    await query("vacuum analyze batches");
    await query(insert("batches", columns, values("new", "'validating', null"), COME));
    const claim = () => store.claimBatchToValidate(claimBy("worker"));
    await expect
      .poll(async () => (await counted.countOf(claim)).pages, { timeout: 60_000, interval: 500 })
      .toBeLessThan(50);
  },
);
