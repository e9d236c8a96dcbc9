/**
 * `kill -9` together with what else goes wrong on a bad day: segments that are lost, altered or cut short while the server
 * is down, garbage to sweep, and a database that another process holds. Every start sweeps and sends again.
 */
import { mkdir, readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import Database from "better-sqlite3";
import type OpenAI from "openai";
import { expect, test } from "vitest";
import { createBatch, uploadLines } from "../support/batches.ts";
import { namesBelow } from "../support/files-below.ts";
import { mixedLines } from "../support/mixed-lines.ts";
import type { BatchdProcess } from "../support/process.ts";
import { serve } from "../support/serve.ts";
import { numbersOf, rowsIn } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const LINES = 800;
const { lines, answered, refused } = mixedLines(LINES);
const KILLS = 4;
const STRAYS = ["files/file-stray", "parts/part_stray", "journal/batch_stray/0-1-0"];

const oneOf = <T>(choices: readonly T[]): T =>
  choices[Math.floor(Math.random() * choices.length)] as T;

async function flipBit(path: string): Promise<void> {
  const bytes = await readFile(path);
  const at = Math.floor(Math.random() * bytes.length);
  bytes[at]! ^= 1;
  await writeFile(path, bytes);
}

const DAMAGES = [(path: string) => rm(path), (path: string) => truncate(path, 50), flipBit];

/** Damages a third of the segments there are; how many there were. */
async function damageJournal(dataDir: string, batchId: string): Promise<number> {
  const folder = join(dataDir, "blobs/journal", batchId);
  const names = await readdir(folder).catch(() => []);
  for (const name of names) {
    if (Math.random() < 1 / 3) await oneOf(DAMAGES)(join(folder, name));
  }
  return names.length;
}

async function leaveGarbage(dataDir: string): Promise<void> {
  for (const key of STRAYS) {
    const path = join(dataDir, "blobs", key);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, "x");
  }
}

/** Holds it as a backup does, until the server has had to wait for it. */
async function holdDatabase(dataDir: string, server: BatchdProcess): Promise<void> {
  const other = new Database(join(dataDir, "batchd.sqlite"), { timeout: 120_000 });
  other.exec("begin immediate");
  await server.loggedLike(/SQLITE_BUSY/);
  other.close();
}

const start = (dataDir: string, upstreamUrl: string) =>
  serve(["--port", "0", "--data-dir", dataDir, "--upstream", upstreamUrl]);

const isFinal = ({ status }: OpenAI.Batch) => status === "completed";

test("killed, damaged, swept and locked out, a batch still ends with each line once", async () => {
  using dir = temporaryFolder("batchd-crash-");
  await using upstream = await startUpstream();
  let { server, openai } = await start(dir.path, upstream.url);
  const input_file_id = await uploadLines(openai, lines);
  const { id } = await createBatch(openai, input_file_id);
  for (let n = 0; n < KILLS; n++) {
    await upstream.reached(upstream.total + Math.floor(Math.random() * (LINES / KILLS)));
    if (n % 2 === 1) await holdDatabase(dir.path, server);
    await server.kill();
    await damageJournal(dir.path, id);
    await leaveGarbage(dir.path);
    ({ server, openai } = await start(dir.path, upstream.url));
    const { request_counts: counts } = await openai.batches.retrieve(id);
    expect(counts!.completed + counts!.failed).toBeLessThanOrEqual(LINES);
  }

  if (!isFinal(await openai.batches.retrieve(id))) await server.batchEnded(id);
  const batch = await openai.batches.retrieve(id);
  expect(batch.status).toBe("completed");
  const [output, error] = [
    await rowsIn(openai, batch.output_file_id),
    await rowsIn(openai, batch.error_file_id),
  ];
  expect(numbersOf(error)).toEqual(refused);
  expect(numbersOf(output)).toEqual(answered);
  const counts = { total: LINES, completed: output.length, failed: error.length };
  expect(batch.request_counts).toEqual(counts);
  const tokens = output.map(({ response }) => tokensOf(response!.body));
  expect(batch.usage?.total_tokens).toBe(tokens.reduce((sum, count) => sum + count, 0));
  await server.kill("SIGTERM");

  // The last start has swept what was left before it, and the next what this one left.
  const last = await start(dir.path, upstream.url);
  await last.server.kill("SIGTERM");
  expect(namesBelow(join(dir.path, "blobs"))).toEqual(
    [input_file_id, batch.output_file_id, batch.error_file_id].sort(),
  );
});

const tokensOf = (body: Record<string, unknown>) =>
  (body["usage"] as { total_tokens: number }).total_tokens;
