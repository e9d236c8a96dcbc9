/**
 * Neither what many clients ask for at once, nor what a server reads again after a change, keeps the event loop for long. A real
 * server, as in `event-loop.test.ts`.
 */
import { mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { ProjectSettings } from "../src/contract/project.ts";
import { UPLOAD_MAX_PARTS } from "../src/contract/upload.ts";
import { submitLines } from "./support/batches.ts";
import { chatTemplate, derive } from "./support/derived.ts";
import { forAllTests } from "./support/for-all-tests.ts";
import { clientOf } from "./support/projects.ts";
import { hasS3Server, newPrefix, startS3Server } from "./support/s3-server.ts";
import { chatLine, chatLines } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";
import { AGAIN, MAX_TURN_MS, startWatched } from "./support/watched-server.ts";

const folder = forAllTests(temporaryFolder("batchd-turns-")).path;

const today = new Date().toISOString().slice(0, 10);

/** As much metadata as a batch may have, each character with an escape in the row. */
const METADATA = Object.fromEntries(
  Array.from({ length: 16 }, (_, n) => [`key-${n}`, '"'.repeat(512)]),
);

const numbers =
  "with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ?)";

/** Open batches that send nothing, and some that have ended. */
function insertBatches(dataDir: string): void {
  const db = new Database(join(dataDir, "batchd.sqlite"));
  const columns = "id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms";
  db.prepare(
    `${numbers} insert into batches (${columns}, in_progress_at_ms, paused_at_ms, pause_reason, total_count)
     select 'batch_' || n, 'default', '/v1/chat/completions', 'file-x', 'in_progress', n, ?, 1, 1, 'user', 1
     from numbers`,
  ).run(60_000, Date.now() + 24 * 60 * 60 * 1000);
  db.prepare(
    `${numbers} insert into batches (${columns}, failed_at_ms, metadata)
     select 'batch_e' || n, 'default', '/v1/chat/completions', 'file-x', 'failed', n, n, n, ?
     from numbers`,
  ).run(1_000, JSON.stringify(METADATA));
  db.prepare(
    `${numbers} insert into model_usage (batch_id, project, model, day, price, request_count)
     select 'batch_' || n, 'default', 'm', ?, '["EUR","1000000","1","1","1","0"]', 1 from numbers`,
  ).run(10_000, today);
  db.close();
}

test(
  "no turn of the event loop is long for lists that match none of 60,000 batches, a scrape, or reports of usage",
  AGAIN,
  async () => {
    const dataDir = await mkdtemp(join(folder, "data-"));
    await using empty = await startWatched(dataDir, []);
    await empty.server.kill("SIGTERM");
    insertBatches(dataDir);
    await using watched = await startWatched(dataDir, []);
    const longestTurnMs = await watched.watch();
    const scrape = await (await fetch(`${watched.url}/metrics`)).text();
    expect(scrape).toContain('batchd_batches_open{status="in_progress"} 60000\n');
    const lists = Array.from({ length: 3 }, async () => {
      const response = await fetch(`${watched.url}/v1/batches?search=nothing`);
      expect(await response.json()).toMatchObject({ data: [], has_more: false });
    });
    await Promise.all(lists);
    const reports = Array.from({ length: 10 }, async () => {
      const response = await fetch(`${watched.url}/v1/usage?from=${today}`);
      expect(await response.json()).toMatchObject({ data: [{ requests: 10_000 }] });
    });
    await Promise.all(reports);
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

const OPERATOR = { name: "operator", key: "operator-key", scopes: ["admin"] };

function insertProjectsAndKeys(dataDir: string): void {
  const db = new Database(join(dataDir, "batchd.sqlite"));
  const rules = ProjectSettings.parse({ quotas: { tokens_per_day: 1, cost_per_month: "1" } });
  db.prepare(
    `${numbers} insert into projects (name, rules, created_at_ms, changed_at_ms)
     select 'project-' || n, ?, 1, 1 from numbers`,
  ).run(10_000, JSON.stringify(rules));
  db.prepare(
    `${numbers} insert into api_keys (id, project, name, scopes, digest, created_at_ms)
     select 'key_' || n, 'project-1', 'name', '["read"]', ?, 1 from numbers`,
  ).run(100_000, "0".repeat(64));
  db.close();
}

test(
  "no turn of the event loop is long for a new key beside 100,000, or for a change of one of 10,000 projects",
  AGAIN,
  async () => {
    const dataDir = await mkdtemp(join(folder, "data-"));
    await using empty = await startWatched(dataDir, []);
    await empty.server.kill("SIGTERM");
    insertProjectsAndKeys(dataDir);
    await using watched = await startWatched(dataDir, [], { auth: { keys: [OPERATOR] } });
    const longestTurnMs = await watched.watch();
    const make = async (what: string, body: object) => {
      const response = await fetch(`${watched.url}/v1/admin/${what}`, {
        method: "POST",
        headers: { authorization: `Bearer ${OPERATOR.key}`, "content-type": "application/json" },
        body: JSON.stringify(body),
      });
      expect(response.status).toBe(200);
      return response.json();
    };
    const { key } = (await make("keys", { name: "new", project: "project-2" })) as { key: string };
    await make("projects", { name: "project-3", quotas: { tokens_per_day: 2 } });
    const headers = { authorization: `Bearer ${key}` };
    expect((await fetch(`${watched.url}/v1/files`, { headers })).status).toBe(200);
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** Uploads that wait for more parts, each with as many as it may have: 500,000 in all, which take 84 ms to add up. */
async function insertParts(dataDir: string): Promise<void> {
  const db = new Database(join(dataDir, "batchd.sqlite"));
  const upload = db.prepare(
    `insert into uploads (id, project, filename, purpose, bytes, mime_type, status, created_at_ms, expires_at_ms, has_parts)
     values (?, 'default', 'f', 'user_data', 1, 'x', 'pending', 1, ${Number.MAX_SAFE_INTEGER}, 1)`,
  );
  const parts = db.prepare(
    `${numbers} insert into upload_parts (id, upload_id, bytes, blob_key, created_at_ms)
     select id || '_' || n, id, 1, 'parts/' || id || '_' || n, 1 from numbers, uploads where id = ?`,
  );
  for (let n = 0; n < 50; n++) {
    upload.run(`upload_${n}`);
    parts.run(UPLOAD_MAX_PARTS, `upload_${n}`);
    await nextTurn();
  }
  db.close();
}

test(
  "no turn of the event loop is long for a part in a project with a quota and 500,000 parts that wait",
  AGAIN,
  async () => {
    const dataDir = await mkdtemp(join(folder, "data-"));
    await using empty = await startWatched(dataDir, []);
    await empty.server.kill("SIGTERM");
    await insertParts(dataDir);
    const projects = [{ name: "default", quotas: { stored_bytes: 500_020 } }];
    await using watched = await startWatched(dataDir, [], { projects });
    const { uploads } = watched.openai;
    const fields = { filename: "f", purpose: "user_data", bytes: 9, mime_type: "a/b" } as const;
    const { id } = await uploads.create(fields);
    const add = (text: string) => uploads.parts.create(id, { data: new File([text], "p") });
    await add("a".repeat(10));
    const longestTurnMs = await watched.watch();
    await expect(add("a".repeat(11))).rejects.toThrow("stored_bytes");
    await add("a".repeat(10));
    await uploads.cancel("upload_7");
    // The code has run before, so a turn has little else to do.
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS / 2);
  },
);

const READERS_OF_PROJECT = 5;

test(
  "no turn of the event loop is long while as many clients as may read results of short rows",
  AGAIN,
  async () => {
    await using upstream = await startUpstream();
    upstream.forget();
    const dataDir = await mkdtemp(join(folder, "data-"));
    const keys = ["a", "b", "c", "d"].map((name) => ({ name, key: name, project: name }));
    const upstreams = [{ name: "u", base_url: upstream.url, models: ["*"] }];
    await using watched = await startWatched(dataDir, upstreams, { auth: { keys } });
    const read = async ({ key }: { readonly key: string }) => {
      const client = clientOf(watched.url, key);
      const { id } = await submitLines(client, chatLines(5_000));
      const status = async () => (await client.batches.retrieve(id)).status;
      await expect.poll(status, { interval: 250 }).toBe("completed");
      return async () => {
        const headers = { authorization: `Bearer ${key}` };
        const response = await fetch(`${watched.url}/v1/batches/${id}/output`, { headers });
        expect((await response.text()).split("\n")).toHaveLength(5_001);
      };
    };
    const readers = await Promise.all(keys.map(read));
    await Promise.all(readers.map((each) => each()));
    const longestTurnMs = await watched.watch();
    const together = Array.from({ length: READERS_OF_PROJECT }, () => readers).flat();
    await Promise.all(together.map((each) => each()));
    // A slice takes 8 ms, and the code has run before.
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS / 4);
  },
);

const LONG_ROW_BYTES = 180_000_000;

const PLACES = hasS3Server() ? ["a folder", "a bucket"] : ["a folder"];

test.for(PLACES)(
  "no turn of the event loop is long while a row of 180 MB in %s is shown, fills a template, or is taken over by a retry",
  AGAIN,
  async (place) => {
    await using s3 = place === "a bucket" ? await startS3Server() : null;
    await using upstream = await startUpstream();
    upstream.forget();
    const dataDir = await mkdtemp(join(folder, "data-"));
    const upstreams = [{ name: "u", base_url: upstream.url, models: ["*"] }];
    const limits = { max_answer_bytes: "192MiB" };
    await using watched = await startWatched(dataDir, upstreams, {
      limits,
      ...(s3 !== null && { storage: s3.storage({ prefix: newPrefix() }) }),
    });
    const { openai, server, url } = watched;
    const lines = [
      chatLine("a", `[[big ${LONG_ROW_BYTES}]]`),
      chatLine("b", "[[status 400 x1]]"),
      chatLine("c", "Hello"),
    ];
    const { id } = await submitLines(openai, lines);
    await server.batchEnded(id);
    const longestTurnMs = await watched.watch();

    const page = await fetch(`${url}/v1/batches/${id}/lines?limit=1`);
    expect((await page.arrayBuffer()).byteLength).toBeGreaterThan(LONG_ROW_BYTES);
    const template = chatTemplate("{{output.model}}");
    const { batch: next } = await derive(watched, { batch: id, lines: "succeeded", template });
    await server.batchEnded(next.id);
    expect((await openai.batches.retrieve(next.id)).request_counts?.completed).toBe(2);
    const { batch: retry } = await derive(watched, { batch: id, lines: "failed", merge: true });
    await server.batchEnded(retry.id);
    const { output_file_id } = await openai.batches.retrieve(retry.id);
    const { bytes } = await openai.files.retrieve(output_file_id ?? "");
    expect(bytes).toBeGreaterThan(LONG_ROW_BYTES);

    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);
