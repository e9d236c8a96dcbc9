/**
 * Nothing that a client sends, and no number of rows, keeps the event loop for long: everything else would wait, health
 * checks and the answers of other clients among it. A real server, and the time for which one turn of its loop kept the
 * processor, which a busy machine does not change.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import Database from "better-sqlite3";
import OpenAI from "openai";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { BatchObject } from "../src/contract/batch.ts";
import { BatchdProcess } from "./support/process.ts";
import { startUpstream, type TestUpstream } from "./support/upstream.ts";

const MEBIBYTE = 1024 * 1024;
/** A turn may take 50 ms. A machine on which everything takes twice as long passes too. */
const MAX_TURN_MS = 100;
/** What code does too long is long each time. What a strained machine adds to a turn is there once. */
const AGAIN = { retry: 2 };
const TURN_WATCH = fileURLToPath(new URL("support/turn-watch.ts", import.meta.url));

let folder: string;
let upstream: TestUpstream;
/** Reports usage many times over, 30 MB of it when it is asked to; another route than the other one. */
let counting: TestUpstream;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "batchd-turns-"));
  upstream = await startUpstream();
  upstream.forget();
  counting = await startUpstream({
    answers: ({ user }) => ({
      headers: { "content-type": "application/json" },
      body: user === "much" ? MUCH_USAGE : '{"usage":{"total_tokens":1}}',
    }),
  });
  counting.forget();
});
afterAll(async () => {
  await counting[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

/** In long objects, and in short ones. */
const MUCH_USAGE = (() => {
  const long = `"usage":{${'"a":[{},{}],'.repeat(4_500)}"total_tokens":7}`;
  const short = '"usage":{"total_tokens":7}';
  return `{${`${long},`.repeat(250)}${`${short},`.repeat(500_000)}${short}}`;
})();

interface Watched extends AsyncDisposable {
  readonly server: BatchdProcess;
  readonly url: string;
  readonly openai: OpenAI;
  /** The longest turn since it accepts requests. */
  longestTurnMs(): Promise<number>;
}

async function start(dataDir: string): Promise<Watched> {
  const file = `${dataDir}.turns`;
  await writeFile(file, "");
  const config = `${dataDir}.yaml`;
  // The second name makes batchd write a model into the bodies that ask for it.
  const models = `["*", { name: alias, upstream_model: other }]`;
  await writeFile(
    config,
    `limits: { max_requests_per_batch: 1000000, allow_mixed_models: true }
upstreams:
  - { name: u, base_url: "${upstream.url}", models: ${models} }
  - { name: c, base_url: "${counting.url}", models: [counted] }`,
  );
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", dataDir];
  const env = { TURN_WATCH_FILE: file, NODE_OPTIONS: `--import ${TURN_WATCH}` };
  const server = new BatchdProcess(args, env);
  const url = await server.listening();
  // What is loaded with the first request is no attack.
  await fetch(`${url}/v1/files`);
  const begun = (await readFile(file)).length;
  return {
    server,
    url,
    openai: new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 }),
    longestTurnMs: async () =>
      Math.max(0, ...(await readFile(file, "utf8")).slice(begun).split("\n").map(Number)),
    [Symbol.asyncDispose]: async () => void (await server.kill()),
  };
}

const line = (customId: string, body: string, url = "/v1/chat/completions") =>
  `{"custom_id":"${customId}","method":"POST","url":"${url}","body":${body}}\n`;

/** As many members as fit into so many bytes; each key is spelled with an escape. */
const escapedKeys = (bytes: number) =>
  `{"model":"alias","messages":[{"content":"hi"}]${',"\\u0061":1'.repeat(bytes / 11)}}`;

async function run(
  { openai, server }: Watched,
  content: string,
  endpoint: OpenAI.BatchCreateParams["endpoint"] = "/v1/chat/completions",
): Promise<OpenAI.Batch> {
  const file = await openai.files.create({
    file: new File([content], "i.jsonl"),
    purpose: "batch",
  });
  const { id } = await openai.batches.create({
    input_file_id: file.id,
    endpoint,
    completion_window: "24h",
  });
  await server.batchEnded(id);
  return openai.batches.retrieve(id);
}

const post = (url: string, path: string, body: string) =>
  fetch(`${url}${path}`, {
    method: "POST",
    body,
    headers: { "content-type": "application/json" },
  }).then(async (response) => {
    await response.arrayBuffer();
    return response.status;
  });

interface Attack {
  readonly name: string;
  readonly attack: (watched: Watched) => Promise<void>;
}

const ATTACKS: readonly Attack[] = [
  {
    name: "a file of keys that are spelled with escapes",
    attack: async (watched) => {
      const { request_counts } = await run(watched, line("a", escapedKeys(31 * MEBIBYTE)));
      expect(request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
    },
  },
  {
    name: "interactive requests of such keys, side by side",
    attack: async ({ url }) => {
      const body = escapedKeys(16 * MEBIBYTE);
      const requests = [1, 2, 3].map(() => post(url, "/v1/chat/completions", body));
      expect(await Promise.all(requests)).toEqual(Array(3).fill(200));
    },
  },
  {
    name: "a body that is nested 8 million levels deep",
    attack: async ({ url }) => {
      const nested = "[".repeat(8_000_000) + "]".repeat(8_000_000);
      const body = `{"model":"alias","messages":${nested}`;
      expect(await post(url, "/v1/chat/completions", body)).toBe(400);
    },
  },
  {
    name: "ten million texts to embed",
    attack: async (watched) => {
      const input = '"",'.repeat(10_000_000);
      const body = `{"model":"m","input":[${input}""]}`;
      const content = line("a", body, "/v1/embeddings");
      const { errors } = await run(watched, content, "/v1/embeddings");
      expect(errors?.data?.[0]?.code).toBe("too_many_inputs");
    },
  },
  {
    name: "a file of five million lines, and one of blank lines",
    attack: async (watched) => {
      const { errors } = await run(watched, "{}\n".repeat(5_000_000));
      expect(errors?.data?.[0]?.code).toBe("too_many_requests");
      const blank = `${line("a", '{"model":"m","messages":[]}')}${"\n \r\n".repeat(10_000_000)}`;
      expect((await run(watched, blank)).request_counts?.completed).toBe(1);
    },
  },
  {
    name: "answers of 60 MB",
    attack: async (watched) => {
      const body = JSON.stringify({ model: "m", messages: [{ content: "[[big 60000000]]" }] });
      const { request_counts } = await run(watched, line("a", body) + line("b", body));
      expect(request_counts?.completed).toBe(2);
    },
  },
  {
    name: "an answer of 30 MB that reports usage all along",
    attack: async (watched) => {
      const body = '{"model":"counted","messages":[],"user":"much"}';
      const { request_counts, usage } = await run(watched, line("a", body));
      expect(request_counts?.completed).toBe(1);
      expect(usage?.total_tokens).toBe(7);
    },
  },
  {
    name: "the lines of a batch whose routes alternate, and its end",
    attack: async ({ openai, server }) => {
      const pair = ["m", "counted"].map((model, i) =>
        line(`${i}-#`, `{"model":"${model}","messages":[]}`),
      );
      const content = Array.from({ length: 50_000 }, (_, i) =>
        pair.join("").replaceAll("#", `${i}`),
      );
      const file = await openai.files.create({
        file: new File([content.join("")], "i.jsonl"),
        purpose: "batch",
      });
      const { id } = await openai.batches.create({
        input_file_id: file.id,
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
      });
      const status = async () => (await openai.batches.retrieve(id)).status;
      await expect.poll(status).toBe("in_progress");
      await openai.batches.cancel(id);
      await server.batchEnded(id);
      expect(await status()).toBe("cancelled");
    },
  },
  {
    name: "JSON of 1 MB where some fields are expected",
    attack: async ({ url }) => {
      const pairsOf = (count: number) =>
        Array.from({ length: count }, (_, i) => `"key${i}":1`).join(",");
      expect(await post(url, "/v1/batches", `{${pairsOf(70_000)}}`)).toBe(413);
      const pairs = pairsOf(10_000);
      expect(await post(url, "/v1/batches", `{${pairs}}`)).toBe(400);
      expect(await post(url, "/v1/batches", `{"metadata":{${pairs}}}`)).toBe(400);
      const parts = Array.from({ length: 400_000 }, () => "1").join(",");
      expect(await post(url, "/v1/uploads/upload_x/complete", `{"part_ids":[${parts}]}`)).toBe(400);
    },
  },
  {
    name: "pages of batches with the longest metadata, side by side",
    attack: async ({ url }) => {
      const pairs = Array.from({ length: 16 }, (_, i) => ["😀".repeat(60) + i, "😀".repeat(512)]);
      const body = JSON.stringify({
        input_file_id: "file-x",
        endpoint: "/v1/chat/completions",
        metadata: Object.fromEntries(pairs),
      });
      for (let i = 0; i < 60; i++) expect(await post(url, "/v1/batches", body)).toBe(200);
      const page = async () => (await fetch(`${url}/v1/batches?limit=100`)).text();
      const pages = await Promise.all([1, 2, 3, 4, 5].map(page));
      for (const each of pages) expect(JSON.parse(each).has_more).toBe(true);
    },
  },
];

test.each(ATTACKS)("no turn of the event loop is long under $name", AGAIN, async ({ attack }) => {
  await using watched = await start(await mkdtemp(join(folder, "data-")));
  await attack(watched);
  expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
});

const numbersUpTo = (count: number) => `
  with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ${count})`;
const NUMBERS = numbersUpTo(30_000);
/** Rows that cost more each: as many as take a tenth of a second at the least when they are handled in one turn. */
const FEWER = 10_000;

interface Rows {
  readonly name: string;
  /** What stands in the data folder besides. */
  readonly prepare?: (dataDir: string) => void;
  /** For each row of `numbers`. */
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
    name: "10,000 uploads that expire together",
    insert: `
      ${numbersUpTo(FEWER)} insert into uploads (id, project, filename, purpose, bytes, mime_type, status, created_at_ms, expires_at_ms)
      select 'upload_' || n, 'p', 'f', 'batch', 1, 'x', 'pending', 1, 2 from numbers`,
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

/** Of which those segments are. */
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
    const dataDir = await mkdtemp(join(folder, "data-"));
    await cp(migrated, dataDir, { recursive: true });
    using db = openRows(dataDir);
    db.exec(`${BATCHES} ${insert}`);
    prepare?.(dataDir);
    await using watched = await start(dataDir);
    await expect.poll(() => db.prepare(left).pluck().get()).toBe(0);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** Of a project that is deleted, and as many of another one. */
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
    const dataDir = await mkdtemp(join(folder, "data-"));
    await cp(migrated, dataDir, { recursive: true });
    using db = openRows(dataDir);
    db.exec(FILES_AND_KEYS);
    await using watched = await start(dataDir);
    db.exec(`insert into projects (name, rules, created_at_ms, changed_at_ms, deleted_at_ms)
    values ('doomed', '{}', 1, 1, ${Date.now()})`);
    const left = `select count(*) from (
    select 1 from files where project = 'doomed' and deleted_at_ms is null
    union all select 1 from idempotency_keys)`;
    await expect.poll(() => db.prepare(left).pluck().get()).toBe(0);
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

test("no turn of the event loop is long with 30,000 batches open, or expiring", AGAIN, async () => {
  const dataDir = await mkdtemp(join(folder, "data-"));
  const input = line("a", '{"model":"m","messages":[{"role":"user","content":"[[hang]]"}]}');
  await using empty = await start(dataDir);
  const { id } = await empty.openai.files.create({
    file: new File([input], "i.jsonl"),
    purpose: "batch",
  });
  await empty.server.kill("SIGTERM");
  using db = openRows(dataDir);
  db.exec(openBatches(id, input.length));
  await using watched = await start(dataDir);
  const lastInQueue = async () => {
    const response = await fetch(`${watched.url}/v1/batches/batch_30000`);
    return ((await response.json()) as BatchObject).x_batchd.queue_position ?? 0;
  };
  await expect.poll(lastInQueue).toBeGreaterThan(20_000);
  const before = await lastInQueue();
  await watched.openai.batches.cancel("batch_20000");
  // All that is known of the batches has been worked out anew.
  await expect.poll(lastInQueue).toBeLessThan(before);

  for (let from = 0; from < 30_000; from += 1_000) {
    db.exec(
      `update batches set expires_at_ms = 2 where sequence between ${from + 1} and ${from + 1_000}`,
    );
  }
  const left = "select count(*) from batches where status = 'in_progress' and stop_reason is null";
  await expect.poll(() => db.prepare(left).pluck().get()).toBe(0);
  const ended = "select count(*) from batches where status = 'expired'";
  await expect.poll(() => db.prepare(ended).pluck().get()).toBeGreaterThan(100);
  expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
});
