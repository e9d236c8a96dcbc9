/**
 * Moves whole installations with `batchd migrate-to`: up to PostgreSQL and a bucket, and back to SQLite and a folder.
 * Clients and upstreams notice nothing.
 */

import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { moveWell, startMove } from "../support/move.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { startReceiver } from "../support/receiver.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, newPrefix, type S3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, type ResultRow } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const LINES = 400;

const postgres = forAllTests(await sharePostgres("moving to PostgreSQL"));

interface Config {
  readonly folder: string;
  readonly name: string;
  readonly values: Record<string, unknown>;
}

function configFile({ folder, name, values }: Config): string {
  const path = join(folder, `${name}.yaml`);
  const engine = { lease_seconds: 3, drain_grace_seconds: 0 };
  // JSON is YAML too.
  writeFileSync(
    path,
    JSON.stringify({ server: { port: 0 }, log_level: "debug", engine, ...values }),
  );
  return path;
}

async function serve(config: string, env: Record<string, string> = {}) {
  const batchd = new BatchdProcess(["serve", "--config", config], env);
  const url = await batchd.listening();
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 });
  return { batchd, url, openai };
}

type Running = Awaited<ReturnType<typeof serve>>;

const inputOf = (count: number) =>
  `${chatLines(count, (n) => `[[delay ${(n * 37) % 60}]] Say ${n}`).join("\n")}\n`;

async function upload({ openai }: Running, count: number): Promise<string> {
  const file = new File([inputOf(count)], "input.jsonl");
  return (await openai.files.create({ file, purpose: "batch" })).id;
}

async function submit(running: Running, count: number): Promise<string> {
  return (await createBatch(running.openai, await upload(running, count))).id;
}

async function final({ openai, batchd }: Running, id: string): Promise<OpenAI.Batch> {
  const batch = await openai.batches.retrieve(id);
  if (batch.status !== "completed") await batchd.batchEnded(id);
  return openai.batches.retrieve(id);
}

async function contentOf({ openai }: Running, fileId: string): Promise<string> {
  return (await openai.files.content(fileId)).text();
}

async function expectEveryLineOnce(running: Running, id: string): Promise<void> {
  const batch = await final(running, id);
  expect(batch.status).toBe("completed");
  const rows = (await contentOf(running, batch.output_file_id!)).trimEnd().split("\n");
  const ids = rows.map((row) => (JSON.parse(row) as ResultRow).custom_id);
  expect(ids).toEqual(Array.from({ length: LINES }, (_, i) => `line-${i + 1}`));
}

/** Creates a batch and kills the server when a part of it is in the journal. */
async function killHalfWay(running: Running, upstream: TestUpstream): Promise<string> {
  upstream.holdAfter(upstream.total + LINES / 2);
  const id = await submit(running, LINES);
  await running.batchd.loggedLike(new RegExp(`"batch":"${id}".*"event":"journal.flushed"`));
  await running.batchd.kill();
  upstream.release();
  return id;
}

const requestsTo = ({ received }: TestUpstream) =>
  received.values().reduce((sum, count) => sum + count, 0);

const idsFrom = async ({ openai }: Running, after: string) => {
  const page = await openai.files.list({ after, limit: 100, order: "asc" });
  return page.data.map(({ id }) => id);
};

describe.skipIf(postgres === null || !hasS3Server())("an installation that moves", () => {
  let server: S3Server;
  beforeAll(async () => {
    server = await startS3Server();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test("finishes its batches on PostgreSQL and S3, and then back on SQLite: ids, cursors, keys, uploads and events hold", async () => {
    using dir = temporaryFolder("batchd-move-");
    await using upstream = await startUpstream();
    await using receiver = await startReceiver();
    receiver.reactAlways({ status: 500 });
    const upstreams = [{ name: "model", base_url: upstream.url, models: ["*"] }];
    const endpoint = { name: "hook", url: `${receiver.url}/`, secret: "whsec_c2VjcmV0" };
    const webhooks = { endpoints: [endpoint], allow_private_hosts: ["127.0.0.1"] };
    const common = { upstreams, webhooks };
    const [first, second] = [join(dir.path, "first"), join(dir.path, "second")];
    const sqlite = { folder: dir.path, name: "sqlite", values: { ...common, data_dir: first } };
    const fromConfig = configFile(sqlite);

    let running = await serve(fromConfig);
    const files = [await upload(running, 1), await upload(running, 2), await upload(running, 3)];
    const doneId = await submit(running, 40);
    const done = await final(running, doneId);
    const output = await contentOf(running, done.output_file_id!);
    const create = (key: string) =>
      createBatch(running.openai, files[0]!, {}, { headers: { "Idempotency-Key": key } });
    const { id: keyedId } = await create("once");
    await final(running, keyedId);
    const text = inputOf(20);
    const { id: uploadId } = await running.openai.uploads.create({
      filename: "parts.jsonl",
      purpose: "batch",
      mime_type: "application/jsonl",
      bytes: text.length,
    });
    const addPart = (part: string) =>
      running.openai.uploads.parts.create(uploadId, { data: new File([part], "part") });
    const { id: firstPart } = await addPart(text.slice(0, 500));
    const halfId = await killHalfWay(running, upstream);
    const sentBefore = requestsTo(upstream);

    const databaseUrl = await postgres!.createEmptyDatabase();
    const place = `s3://tests/moved?region=us-east-1&force_path_style=true&endpoint=${server.url}`;
    const up = ["--config", fromConfig, "--database-url", databaseUrl, "--storage", place];
    const said = await moveWell(up);
    expect(said).toMatch(
      /^done: \d+ files, 3 batches, \d+ blobs with .+ rows; all verified by SHA-256$/m,
    );

    receiver.reactAlways({ status: 200 });
    const storage = server.storage({ prefix: "moved/" });
    const postgresAndS3 = { ...common, storage, data_dir: join(dir.path, "unused") };
    const toConfig = configFile({ folder: dir.path, name: "postgres", values: postgresAndS3 });
    const env = { BATCHD_DATABASE_URL: databaseUrl };
    running = await serve(toConfig, env);
    await expectEveryLineOnce(running, halfId);
    // The lines in the journal were not sent again.
    expect(requestsTo(upstream) - sentBefore).toBeLessThan(LINES);
    expect(await running.openai.batches.retrieve(doneId)).toEqual(done);
    expect(await contentOf(running, done.output_file_id!)).toBe(output);
    expect((await idsFrom(running, files[0]!)).slice(0, 2)).toEqual(files.slice(1));
    expect((await create("once")).id).toBe(keyedId);
    const parts = "select part_count::int as parts, part_bytes::int as bytes from uploads";
    expect(await query(databaseUrl, parts)).toEqual([{ parts: 1, bytes: 500 }]);
    const { id: lastPart } = await addPart(text.slice(500));
    const { file } = await running.openai.uploads.complete(uploadId, {
      part_ids: [firstPart, lastPart],
    });
    expect(await contentOf(running, file!.id)).toBe(text);
    await expect
      .poll(() => receiver.seen.filter(({ body }) => body.includes(doneId)).length)
      .toBeGreaterThan(1);

    // A server on PostgreSQL and S3 writes to no folder.
    expect(existsSync(join(dir.path, "unused"))).toBe(false);
    const laterId = await killHalfWay(running, upstream);
    await claimsEnded(databaseUrl);
    await moveWell(["--config", toConfig, "--storage", second], env);
    const back = { ...common, data_dir: second };
    running = await serve(configFile({ folder: dir.path, name: "back", values: back }));
    await expectEveryLineOnce(running, laterId);
    expect(await running.openai.batches.retrieve(doneId)).toEqual(done);
    expect(await contentOf(running, file!.id)).toBe(text);
    expect((await idsFrom(running, files[0]!)).slice(0, 2)).toEqual(files.slice(1));
    const batches = await running.openai.batches.list({ after: halfId });
    expect(batches.data.map(({ id }) => id)).toEqual([keyedId, doneId]);
    await running.batchd.kill("SIGTERM");
  });

  test("goes on where a killed run ended, at whatever moment, and is not served before the end", async () => {
    using dir = temporaryFolder("batchd-move-");
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const upstreams = [{ name: "model", base_url: upstream.url, models: ["*"] }];
    const values = { upstreams, data_dir: join(dir.path, "data") };
    const fromConfig = configFile({ folder: dir.path, name: "from", values });
    let running = await serve(fromConfig);
    for (let n = 0; n < 10; n++) await upload(running, 3);
    const id = await killHalfWay(running, upstream);

    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    const databaseUrl = await postgres!.createEmptyDatabase();
    const target = { upstreams, storage, database_url: databaseUrl };
    const toConfig = configFile({ folder: dir.path, name: "to", values: target });
    const args = ["--config", fromConfig, "--to-config", toConfig];
    proxy.trouble = { kind: "hold", method: "PUT", path: /journal/ };
    const held = startMove(args);
    await expect.poll(() => proxy.held.length).toBeGreaterThan(0);
    await held.kill();
    proxy.trouble = null;
    const refused = await runCommand(["serve", "--config", toConfig]);
    expect(refused.stderr).toContain("an unfinished copy of another one");

    for (const table of ["files", "batches", "segments", "installation"]) {
      await killAtWriteTo(table, databaseUrl, args);
    }
    const said = await moveWell(args);
    expect(said).toContain("an earlier run has begun this copy: going on");
    expect(said).toMatch(/ (\d+) of \1 copied and verified .*, \1 by an earlier run/);

    running = await serve(toConfig);
    expect((await running.openai.files.list({ limit: 100 })).data).toHaveLength(11);
    await expectEveryLineOnce(running, id);
    await running.batchd.kill("SIGTERM");
  });
});

/** Kills a move while it writes to the table, and ends its connection. */
async function killAtWriteTo(table: string, databaseUrl: string, args: readonly string[]) {
  const client = new Client(databaseUrl);
  await client.connect();
  await client.query(
    `create or replace function wait_for_test() returns trigger language plpgsql as
       $$ begin perform pg_advisory_xact_lock(42); return null; end $$;
     create trigger slow before insert or update on ${table}
       for each statement execute function wait_for_test();
     select pg_advisory_lock(42)`,
  );
  const killed = startMove(args);
  const waiting = "select pid from pg_locks where locktype = 'advisory' and not granted";
  const isWaiting = async () => (await client.query(waiting)).rowCount;
  await expect.poll(isWaiting).toBe(1);
  await killed.kill();
  await client.query(`select pg_terminate_backend(pid, 10000) from (${waiting}) as held`);
  await client.query(`drop trigger slow on ${table}`);
  await client.end();
}

/** A killed process counts as a replica until its claim ends. */
async function claimsEnded(databaseUrl: string): Promise<void> {
  const live = `select 1 from replicas where expires_at_ms > extract(epoch from now()) * 1000`;
  await expect.poll(() => query(databaseUrl, live)).toEqual([]);
}
