/**
 * `kill -9` while a chain of batches runs: each line goes through each step once, and no input is half there. A longer
 * run is `BATCHD_CHAIN_LINES=2000 BATCHD_CHAIN_KILLS=10`.
 */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import type OpenAI from "openai";
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { chatTemplate, derive } from "../support/derived.ts";
import { Fleet } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { serve } from "../support/serve.ts";
import { chatLine } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const LINES = Number(process.env["BATCHD_CHAIN_LINES"] ?? 300);
const killsOr = (usual: number) => Number(process.env["BATCHD_CHAIN_KILLS"] ?? usual);
const ANSWER = "{{output.choices.0.message.content}}";
// Half of the lines ask what another one asks.
const asked = (n: number) => `Say ${n % (LINES / 2)}`;
const lines = Array.from({ length: LINES }, (_, n) =>
  chatLine(`line-${n}`, asked(n), { user: "same" }),
);

const postgres = forAllTests(await sharePostgres("a chain of batches on PostgreSQL"));
const s3 = forAllTests(postgres !== null && hasS3Server() ? await startS3Server() : null);

interface Running {
  readonly url: string;
  readonly openai: OpenAI;
}

/** Creates three batches, each of the answers to the one before it. */
async function createChain(running: Running): Promise<readonly string[]> {
  const first = await submitLines(running.openai, lines, { x_batchd: { dedupe: true } });
  const ids = [first.id];
  for (let n = 0; n < 2; n++) {
    const { batch } = await derive(running, {
      batch: ids.at(-1),
      template: chatTemplate(`${n}: ${ANSWER}`),
    });
    ids.push(batch.id);
  }
  return ids;
}

/** Calls `kill` after some more requests each time, so the kills are spread over the steps, and come right after an end. */
async function killOften(upstream: TestUpstream, count: number, kill: () => Promise<void>) {
  const allRequests = 2.5 * LINES;
  for (let n = 0; n < count; n++) {
    await upstream.reached(Math.ceil((allRequests * (n + 0.5)) / count));
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 50));
    await kill();
  }
}

async function expectEveryLineOnce({ openai }: Running, ids: readonly string[]) {
  // A batch may have ended in a process that was killed, whose log is gone.
  const last = ids.at(-1) ?? "";
  await expect
    .poll(async () => (await openai.batches.retrieve(last)).status, { timeout: 120_000 })
    .toBe("completed");
  const contents: string[][] = [];
  for (const id of ids) {
    const batch = await openai.batches.retrieve(id);
    expect(batch).toMatchObject({
      status: "completed",
      request_counts: { total: LINES, completed: LINES, failed: 0 },
    });
    const output = await (await openai.files.content(batch.output_file_id ?? "")).text();
    const rows = output
      .trimEnd()
      .split("\n")
      .map((row) => JSON.parse(row));
    expect(rows.map((row) => row.custom_id)).toEqual(lines.map((_, n) => `line-${n}`));
    contents.push(rows.map((row) => row.response.body.choices[0].message.content));
  }
  expect(contents[2]).toEqual(lines.map((_, n) => `echo: 1: echo: 0: echo: ${asked(n)}`));
}

/** One upload, two derived inputs, three outputs; what a kill left behind is swept or no file of a client. */
const FILES = 6;

const start = (dataDir: string, upstream: TestUpstream) =>
  serve(["--port", "0", "--data-dir", dataDir, "--upstream", upstream.url]);

test("a chain of three batches survives kills at random moments, with every line once in each step", async () => {
  using folder = temporaryFolder("batchd-chain-");
  await using upstream = await startUpstream();
  let running = await start(folder.path, upstream);
  const ids = await createChain(running);
  await killOften(upstream, killsOr(3), async () => {
    await running.server.kill();
    running = await start(folder.path, upstream);
  });
  await expectEveryLineOnce(running, ids);
  await running.server.kill("SIGTERM");
  const db = new Database(join(folder.path, "batchd.sqlite"), { readonly: true });
  const stored = db.prepare("select blob_key from files where deleted_at_ms is null").all();
  db.close();
  expect(stored).toHaveLength(FILES);
  const blobs = new Set(
    readdirSync(join(folder.path, "blobs", "files")).map((name) => `files/${name}`),
  );
  for (const { blob_key: key } of stored as { blob_key: string }[]) expect(blobs).toContain(key);
});

test.skipIf(s3 === null)(
  "it survives them on PostgreSQL and a bucket, too, with two workers that are killed in turn",
  async () => {
    const databaseUrl = await postgres!.createDatabase();
    const storage = s3!.storage({ prefix: `chain-${Date.now()}/` });
    await using fleet = new Fleet({ databaseUrl, storage });
    const upstream = await fleet.upstream();
    const [api, ...workers] = await Promise.all([
      fleet.api(),
      fleet.worker({ upstream }),
      fleet.worker({ upstream }),
    ]);
    const ids = await createChain(api);
    await killOften(upstream, killsOr(2), async () => {
      await workers.shift()?.batchd.kill();
      workers.push(await fleet.worker({ upstream }));
    });
    await expectEveryLineOnce(api, ids);
    const kept = "select 1 from files where deleted_at_ms is null";
    expect(await query(databaseUrl, kept)).toHaveLength(FILES);
  },
);
