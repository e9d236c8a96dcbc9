/**
 * No number of rows keeps the event loop for long: everything else would wait, health checks and the answers of clients
 * among it. A real server, as in `event-loop.test.ts`.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import Database from "better-sqlite3";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { BatchObject } from "../src/contract/batch.ts";
import { ProjectSettings } from "../src/contract/project.ts";
import { submitLines } from "./support/batches.ts";
import { BEFORE_USAGE_SUMS } from "./support/earlier-versions.ts";
import { startReceiver } from "./support/receiver.ts";
import { chatLine } from "./support/service.ts";
import { startUpstream, type TestUpstream } from "./support/upstream.ts";
import { AGAIN, MAX_TURN_MS, startWatched, type WatchedServer } from "./support/watched-server.ts";

let folder: string;
let upstream: TestUpstream;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "batchd-turns-"));
  upstream = await startUpstream();
  upstream.forget();
});
afterAll(async () => {
  await upstream[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

const start = (dataDir: string, settings: object = {}) =>
  startWatched(dataDir, [{ name: "u", base_url: upstream.url, models: ["*"] }], settings);

/** Makes a data folder with the rows that some SQL inserts, each of the texts in a turn of this process. */
async function dataDirWith(...inserts: readonly string[]): Promise<string> {
  const dataDir = await mkdtemp(join(folder, "data-"));
  await cp(migrated, dataDir, { recursive: true });
  using db = openRows(dataDir);
  for (const each of inserts) {
    db.exec(each);
    await nextTurn();
  }
  return dataDir;
}

/** Runs a batch to its end. */
async function complete({ openai }: WatchedServer, lines: readonly string[]): Promise<void> {
  const { id } = await submitLines(openai, lines);
  const status = async () => (await openai.batches.retrieve(id)).status;
  await expect.poll(status, SELDOM).toBe("completed");
}

const numbersUpTo = (count: number, first = 1) => `
  with recursive numbers(n) as (
    select ${first} union all select n + 1 from numbers where n < ${count})`;
const NUMBERS = numbersUpTo(30_000);
const PAGE = 100_000;
/** Very many rows, in pages. */
const insertUpTo = (count: number, insert: string) =>
  Array.from(
    { length: count / PAGE },
    (_, page) => `${numbersUpTo((page + 1) * PAGE, page * PAGE + 1)} ${insert}`,
  );
/** Rows that cost more each: as many as take a tenth of a second at the least when they are handled in one turn. */
const FEWER = 10_000;

/** Each look at so many rows takes the server some milliseconds. */
const SELDOM = { interval: 250 };

interface Rows {
  readonly name: string;
  /** What stands in the data folder besides. */
  readonly prepare?: (dataDir: string) => void;
  /** It runs for each row of `numbers`. */
  readonly insert: string;
  /** How many are still to be dealt with. */
  readonly left: string;
}

const ROWS: readonly Rows[] = [
  {
    name: "10,000 files that expire together",
    insert: `
      ${numbersUpTo(FEWER)} insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms, expires_at_ms)
      select 'file-' || n, 'p', 'batch', 'f', 1, 'x', 'files/file-' || n, 1, 2 from numbers`,
    left: "select count(*) from files where deleted_at_ms is null",
  },
  {
    name: "10,000 uploads that expire together, each with a part",
    insert: `
      ${numbersUpTo(FEWER)} insert into uploads (id, project, filename, purpose, bytes, mime_type, status, created_at_ms, expires_at_ms, has_parts)
      select 'upload_' || n, 'p', 'f', 'batch', 1, 'x', 'pending', 1, 2, 1 from numbers;
      insert into upload_parts (id, upload_id, bytes, blob_key, created_at_ms)
      select 'part' || id, id, 1, 'parts/part' || id, 1 from uploads`,
    left: "select count(*) from uploads where status = 'pending'",
  },
  {
    name: "30,000 keys of requests that are forgotten together",
    insert: `
      ${NUMBERS} insert into idempotency_keys (project, key, created_at_ms, fingerprint, answer)
      select 'p', 'key-' || n, 1, 'f', 'a' from numbers`,
    left: "select count(*) from idempotency_keys",
  },
  {
    name: "30,000 parts of an upload that was cancelled",
    insert: `
      insert into uploads (id, project, filename, purpose, bytes, mime_type, status, created_at_ms, expires_at_ms, has_parts)
      values ('upload_p', 'p', 'f', 'batch', 1, 'x', 'cancelled', 1, 2, 1);
      ${NUMBERS} insert into upload_parts (id, upload_id, bytes, blob_key, created_at_ms)
      select 'part_' || n, 'upload_p', 1, 'parts/part_' || n, 1 from numbers`,
    left: "select count(*) from upload_parts",
  },
  {
    name: "10,000 segments of a batch that has ended",
    prepare: (dataDir) => writeSegments(dataDir, "batch_s"),
    insert: `
      ${numbersUpTo(FEWER)} insert into segments (batch_id, chunk_number, blob_key, bytes)
      select 'batch_s', 0, 'journal/batch_s/0-1-' || n, 1 from numbers`,
    left: "select count(*) from segments",
  },
  {
    name: "5,000 segments that cannot be read any more",
    insert: `
      ${numbersUpTo(FEWER / 2)} insert into segments (batch_id, chunk_number, blob_key, bytes, crc32, completed_count, failed_count)
      select 'batch_f', 0, 'journal/batch_f/0-1-' || n, 1, 1, 1, 0 from numbers`,
    left: "select count(*) from segments",
  },
];

function writeSegments(dataDir: string, batchId: string): void {
  const folder = join(dataDir, "blobs", "journal", batchId);
  mkdirSync(folder, { recursive: true });
  for (let n = 1; n <= FEWER; n++) writeFileSync(join(folder, `0-1-${n}`), "");
}

/** The batches of the segments. */
const BATCHES = `
  insert into batches (id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms,
    in_progress_at_ms, finalizing_at_ms, completed_at_ms, has_chunks, total_count, completed_count)
  values
    ('batch_s', 'p', '/v1/chat/completions', 'file-x', 'completed', 1, 2, 1, 1, 1, 1, 30000, 30000),
    ('batch_f', 'p', '/v1/chat/completions', 'file-x', 'finalizing', 1, ${Date.now() + 3_600_000},
      1, 1, null, 1, 30000, 30000);
  insert into chunks (batch_id, number, model, line_count, extents, closed_at_ms, lease_epoch)
  values ('batch_s', 0, 'm', 30000, '[]', 1, 1), ('batch_f', 0, 'm', 30000, '[]', 1, 1);`;

/** The rows of a server that has stopped, or that runs: then another connection may have to wait for its commits. */
const openRows = (dataDir: string) => {
  const db = new Database(join(dataDir, "batchd.sqlite"));
  return Object.assign(db, { [Symbol.dispose]: () => void db.close() });
};

/** A data folder with tables and without rows. */
let migrated: string;
beforeAll(async () => {
  migrated = await mkdtemp(join(folder, "migrated-"));
  await using empty = await start(migrated);
  await empty.server.kill("SIGTERM");
});

test.each(ROWS)(
  "no turn of the event loop is long when there are $name",
  AGAIN,
  async ({ prepare, insert, left }) => {
    const dataDir = await dataDirWith(`${BATCHES} ${insert}`);
    using db = openRows(dataDir);
    prepare?.(dataDir);
    await using watched = await start(dataDir);
    await expect.poll(() => db.prepare(left).pluck().get(), SELDOM).toBe(0);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** Files and keys of a project that is deleted, and as many of another one. */
const FILES_AND_KEYS = `
  ${numbersUpTo(200_000)}
  insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms)
  select 'file-' || n, iif(n % 2, 'doomed', 'kept'), 'batch', 'f', 1, 'x', 'files/file-' || n, 1 from numbers;
  ${numbersUpTo(100_000)} insert into idempotency_keys (project, key, created_at_ms, fingerprint, answer)
  select 'doomed', 'key-' || n, ${Date.now()}, 'f', 'a' from numbers`;

test(
  "no turn of the event loop is long when a project with 100,000 files is deleted",
  AGAIN,
  async () => {
    const dataDir = await dataDirWith(FILES_AND_KEYS);
    using db = openRows(dataDir);
    await using watched = await start(dataDir);
    db.exec(`insert into projects (name, rules, created_at_ms, changed_at_ms, deleted_at_ms)
    values ('doomed', '{}', 1, 1, ${Date.now()})`);
    const left = `select count(*) from (
    select 1 from files where project = 'doomed' and deleted_at_ms is null
    union all select 1 from idempotency_keys)`;
    await expect.poll(() => db.prepare(left).pluck().get(), SELDOM).toBe(0);
    // The last turn counts once it is over.
    await watched.openai.files.list();
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** Each of one line, to which there is never an answer, in a file that was uploaded. */
const openBatches = (fileId: string, inputBytes: number) => `
  ${NUMBERS}
  insert into batches (id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms,
    in_progress_at_ms, has_chunks, total_count)
  select 'batch_' || n, files.project, '/v1/chat/completions', files.id, 'in_progress', n,
    ${Date.now() + 24 * 60 * 60 * 1000} + n, 1, 1, 1
  from numbers, files where files.id = '${fileId}';
  ${NUMBERS}
  insert into chunks (batch_id, number, model, line_count, extents)
  select 'batch_' || n, 0, 'm', 1, '[{"start":0,"end":${inputBytes},"firstLine":1}]' from numbers;`;

/** Leaves a data folder behind with the input of batches that do not end. */
async function uploadedInput() {
  const dataDir = await mkdtemp(join(folder, "data-"));
  const input = `${chatLine("a", "[[hang]]")}\n`;
  await using empty = await start(dataDir);
  const { id } = await empty.openai.files.create({
    file: new File([input], "i.jsonl"),
    purpose: "batch",
  });
  await empty.server.kill("SIGTERM");
  return { dataDir, id, bytes: input.length };
}

test(
  "no turn of the event loop is long with 30,000 batches open, and 10,000 of them expiring",
  AGAIN,
  async () => {
    const { dataDir, id, bytes } = await uploadedInput();
    using db = openRows(dataDir);
    db.exec(openBatches(id, bytes));
    await using watched = await start(dataDir);
    const lastInQueue = async () => {
      const response = await fetch(`${watched.url}/v1/batches/batch_30000`);
      return ((await response.json()) as BatchObject).x_batchd.queue_position ?? 0;
    };
    await expect.poll(lastInQueue, SELDOM).toBeGreaterThan(20_000);
    const before = await lastInQueue();
    await watched.openai.batches.cancel("batch_20000");
    // All that is known of the batches has been worked out anew.
    await expect.poll(lastInQueue, SELDOM).toBeLessThan(before);

    for (let from = 0; from < FEWER; from += 1_000) {
      db.exec(
        `update batches set expires_at_ms = 2 where sequence between ${from + 1} and ${from + 1_000}`,
      );
    }
    const left = `select count(*) from batches where sequence <= ${FEWER} and status = 'in_progress' and stop_reason is null`;
    await expect.poll(() => db.prepare(left).pluck().get(), SELDOM).toBe(0);
    const ended = "select count(*) from batches where status = 'expired'";
    await expect.poll(() => db.prepare(ended).pluck().get(), SELDOM).toBeGreaterThan(100);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

const MONTH = new Date().toISOString().slice(0, 7);
/** What 100,000 batches of a project took this month, as a server of a version before has recorded it. */
const USED_THIS_MONTH = `
  ${BEFORE_USAGE_SUMS}
  ${numbersUpTo(100_000)}
  insert into model_usage (batch_id, project, model, day, price, request_count, input_tokens, output_tokens)
  select 'batch_' || n, 'default', 'm', '${MONTH}-' || substr('0' || (1 + n % 28), -2),
    '["EUR","1000000","1","1","1","0"]', 1, 1, 1 from numbers`;

test(
  "no turn of the event loop is long for a project with a budget and 100,000 batches in the month",
  AGAIN,
  async () => {
    const dataDir = await dataDirWith(USED_THIS_MONTH);
    await using watched = await start(dataDir, {
      prices: [{ model: "*", currency: "EUR", input: "1", output: "1" }],
      projects: [{ name: "default", quotas: { cost_per_month: "1000" } }],
    });
    const lines = Array.from({ length: 2_000 }, (_, n) => chatLine(`${n}`, "Hello"));
    await complete(watched, lines);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
    using db = openRows(dataDir);
    const sumsOf = (table: string) =>
      db
        .prepare(
          `select day, price, sum(request_count), sum(input_tokens), sum(output_tokens)
        from ${table} group by day, price order by day, price`,
        )
        .all();
    expect(sumsOf("usage_sums")).toEqual(sumsOf("model_usage"));
  },
);

/** As many files as take 90 ms to add up. */
const STORED = insertUpTo(
  1_000_000,
  `insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms)
  select 'file-' || n, 'default', 'batch', 'f', 1, 'x', 'files/file-' || n, 1 from numbers`,
);

test(
  "no turn of the event loop is long for an upload to a project with a quota and 1,000,000 files",
  AGAIN,
  async () => {
    const dataDir = await dataDirWith(...STORED);
    const quotas = { files: 1_000_002, stored_bytes: 1_000_011 };
    await using watched = await start(dataDir, { projects: [{ name: "default", quotas }] });
    const upload = (text: string) =>
      watched.openai.files.create({ file: new File([text], "f"), purpose: "user_data" });
    await upload("a");
    const longestTurnMs = await watched.watch();
    await expect(upload("a".repeat(11))).rejects.toThrow("stored_bytes");
    await upload("a".repeat(10));
    await expect(upload("a")).rejects.toThrow("files");
    // The code has run before, so a turn has little else to do.
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS / 2);
  },
);

/** What a project has left behind in some months. */
const ENDED = insertUpTo(
  500_000,
  `insert into batches (id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms, failed_at_ms, metadata)
  select 'batch_' || n, 'default', '/v1/chat/completions', 'file-x', 'failed', n, n, n, '{"a":"${"x".repeat(450)}"}' from numbers`,
);

test(
  "no turn of the event loop is long for a project with limits on its open batches and 500,000 that have ended",
  AGAIN,
  async () => {
    const dataDir = await dataDirWith(...ENDED);
    await using watched = await start(dataDir, {
      projects: [{ name: "default", quotas: { open_batches: 5, enqueued_lines: 5 } }],
    });
    await complete(watched, [chatLine("a", "Hello")]);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** The events of batches that ended while their webhook was away. */
const EVENTS = [
  ...insertUpTo(
    100_000,
    `insert into batches (id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms, failed_at_ms)
  select 'batch_' || n, 'default', '/v1/chat/completions', 'file-x', 'failed', n, n, n from numbers`,
  ),
  ...insertUpTo(
    100_000,
    `insert into deliveries (webhook_id, event_id, webhook, batch_id, project, status, created_at_ms, next_attempt_at_ms)
  select 'wh_' || n, 'evt_' || n, 'hook', 'batch_' || n, 'default', 'failed', ${Date.now()}, n from numbers`,
  ),
];

test(
  "no turn of the event loop is long for one of 100,000 events that wait, or for a batch that is deleted meanwhile",
  AGAIN,
  async () => {
    const dataDir = await dataDirWith(...EVENTS);
    await using receiver = await startReceiver();
    await using watched = await start(dataDir, {
      webhooks: {
        endpoints: [{ name: "hook", url: receiver.url, secret: "s" }],
        allow_private_hosts: ["127.0.0.1"],
      },
    });
    await receiver.reached(20);
    await fetch(`${watched.url}/v1/batches/batch_100000`, { method: "DELETE" });
    await receiver.reached(receiver.seen.length + 20);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** It is more than the batches use, so that those with another limit go on for good. */
const LIMIT = 1_000_000_000_000;

test(
  "no turn of the event loop is long when 30,000 batches are paused by a quota, and go on",
  AGAIN,
  async () => {
    const { dataDir, id, bytes } = await uploadedInput();
    using db = openRows(dataDir);
    const pausedBy = (limit: string) =>
      `pause_reason = 'tokens_per_day', pause_limit = '${limit}', paused_at_ms = ${Date.now()}`;
    const rules = ProjectSettings.parse({ quotas: { tokens_per_day: LIMIT } });
    db.exec(`${openBatches(id, bytes)}
    insert into projects (name, rules, created_at_ms, changed_at_ms)
    values ('default', '${JSON.stringify(rules)}', 1, 1)`);
    await using watched = await start(dataDir);
    const pause = (from: number, limit: string) => {
      const some = `sequence between ${from + 1} and ${from + 1_000}`;
      db.exec(`update batches set ${pausedBy(limit)} where ${some}`);
    };
    for (let from = 0; from < 30_000; from += 1_000) pause(from, String(LIMIT));
    for (let from = 0; from < 3_000; from += 1_000) pause(from, "5");
    const left = "select count(*) from batches where paused_at_ms is not null";
    await expect.poll(() => db.prepare(left).pluck().get(), SELDOM).toBe(27_000);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);
