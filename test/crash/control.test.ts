/** `kill -9` at random moments of what a client does with a running batch: each has happened as a whole, or not at all. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { BatchdProcess } from "../support/process.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const LINES = 400;
const KILLS = 6;

async function start(dataDir: string, upstream: TestUpstream) {
  const args = ["serve", "--port", "0", "--data-dir", dataDir, "--upstream", upstream.url];
  const server = new BatchdProcess(args);
  const url = await server.listening();
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 });
  return { server, url, openai };
}

type Started = Awaited<ReturnType<typeof start>>;

async function submit({ openai }: Started): Promise<string> {
  const text = `${chatLines(LINES, (n) => `Say ${n}`).join("\n")}\n`;
  const file = new File([text], "input.jsonl");
  const input = await openai.files.create({ file, purpose: "batch" });
  const { id } = await openai.batches.create({
    input_file_id: input.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  return id;
}

type Controlled = OpenAI.Batch & { readonly x_batchd: { readonly paused: unknown } };

const read = async ({ openai }: Started, id: string) =>
  (await openai.batches.retrieve(id)) as Controlled;

const ask = ({ url }: Started, path: string) =>
  fetch(`${url}/v1/batches/${path}`, { method: "POST" });

test("killed while it is paused and resumed, a batch is one or the other, and completes with every line", async () => {
  using folder = temporaryFolder("batchd-control-");
  await using upstream = await startUpstream();
  let running = await start(folder.path, upstream);
  // The batch does not end before the last kill.
  upstream.hold();
  const id = await submit(running);
  await upstream.reached(1);
  for (let n = 0; n < KILLS; n++) {
    const action = n % 2 === 0 ? "pause" : "resume";
    const answered = ask(running, `${id}/${action}`).then(
      ({ status }) => status,
      () => null,
    );
    // The kill comes before, during and after the commit.
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 8));
    await running.server.kill();
    const status = await answered;
    running = await start(folder.path, upstream);
    const { x_batchd } = await read(running, id);
    if (status === 200) expect(x_batchd.paused !== null).toBe(action === "pause");
  }
  expect((await ask(running, `${id}/pause`)).status).toBe(200);
  upstream.release();
  // What is in flight ends.
  await running.server.kill("SIGTERM");
  const sent = upstream.total;
  running = await start(folder.path, upstream);
  // A whole batch goes through meanwhile.
  const other = await submit(running);
  await running.server.batchEnded(other);
  expect(upstream.total).toBe(sent + LINES);

  const resumed = await ask(running, `${id}/resume`);
  expect([resumed.status, await resumed.text()]).toEqual([200, expect.anything()]);
  await running.server.batchEnded(id);
  const batch = await read(running, id);
  expect(batch.request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 });
  const text = await (await running.openai.files.content(batch.output_file_id!)).text();
  const ids = text
    .split("\n")
    .slice(0, -1)
    .map((row) => JSON.parse(row).custom_id);
  expect(ids).toEqual(Array.from({ length: LINES }, (_, i) => `line-${i + 1}`));
  await running.server.kill("SIGTERM");
});

/** Counts what the data folder has of any batch or file. */
function leftIn(dataDir: string): number {
  const db = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
  const tables = ["batches", "chunks", "segments", "files"];
  const rows = tables.map((table) => db.prepare(`select 1 from ${table}`).all().length);
  db.close();
  const blobs = readdirSync(join(dataDir, "blobs"), { recursive: true, withFileTypes: true });
  return rows.reduce((sum, count) => sum + count, 0) + blobs.filter((each) => each.isFile()).length;
}

test("killed while running batches are deleted, a server has them as a whole or not at all, and leaves nothing of them", async () => {
  using folder = temporaryFolder("batchd-control-");
  await using upstream = await startUpstream();
  let running = await start(folder.path, upstream);
  upstream.hold();
  for (let n = 0; n < KILLS; n++) {
    const id = await submit(running);
    await upstream.reached(upstream.total + 1);
    const answered = fetch(`${running.url}/v1/batches/${id}?files=input`, {
      method: "DELETE",
    }).then(
      ({ status }) => status,
      () => null,
    );
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 20));
    await running.server.kill();
    const status = await answered;
    running = await start(folder.path, upstream);
    const listed = (await running.openai.batches.list()).data.map((batch) => batch.id);
    const files = (await running.openai.files.list()).data;
    if (status === 200) expect(listed).toEqual([]);
    expect(files).toHaveLength(listed.length);
    for (const left of listed) {
      const again = await fetch(`${running.url}/v1/batches/${left}?files=input`, {
        method: "DELETE",
      });
      expect(again.status).toBe(200);
    }
  }
  upstream.release();
  // The sweep looks at its start, and at each deletion.
  await running.server.kill();
  running = await start(folder.path, upstream);
  await expect.poll(() => leftIn(folder.path)).toBe(0);
});

async function create({ url }: Started, body: object) {
  const response = await fetch(`${url}/v1/batches`, {
    method: "POST",
    body: JSON.stringify({
      ...{ endpoint: "/v1/chat/completions", completion_window: "24h" },
      ...body,
    }),
  });
  return ((await response.json()) as { id: string }).id;
}

const idsIn = (text: string) =>
  text
    .split("\n")
    .slice(0, -1)
    .map((row) => JSON.parse(row).custom_id as string);

test("killed while its sample runs and ends, a batch pauses after the sample, and completes with every line once", async () => {
  using folder = temporaryFolder("batchd-control-");
  await using upstream = await startUpstream();
  let running = await start(folder.path, upstream);
  const text = `${chatLines(LINES, (n) => `Say ${n} [[delay 5]]`).join("\n")}\n`;
  const file = new File([text], "input.jsonl");
  const { id: input_file_id } = await running.openai.files.create({ file, purpose: "batch" });
  const id = await create(running, { input_file_id, x_batchd: { sample: 40 } });
  for (let n = 0; n < KILLS / 2; n++) {
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 60));
    await running.server.kill();
    running = await start(folder.path, upstream);
  }
  await expect
    .poll(async () => (await read(running, id)).x_batchd.paused, { timeout: 60_000 })
    .toMatchObject({ reason: "sample" });
  expect((await read(running, id)).request_counts).toMatchObject({ completed: 40 });
  expect((await ask(running, `${id}/resume`)).status).toBe(200);
  await running.server.batchEnded(id);
  const batch = await read(running, id);
  const output = await (await running.openai.files.content(batch.output_file_id!)).text();
  expect(idsIn(output)).toEqual(Array.from({ length: LINES }, (_, i) => `line-${i + 1}`));
  await running.server.kill("SIGTERM");
}, 120_000);

test("killed while lines are run again, a server has made the batch with its whole input or nothing, and leaves no blob behind", async () => {
  using folder = temporaryFolder("batchd-control-");
  await using upstream = await startUpstream();
  let running = await start(folder.path, upstream);
  const id = await submit(running);
  await running.server.batchEnded(id);
  const from = { batch: id, lines: "all", merge: true };
  for (let n = 0; n < KILLS / 2; n++) {
    const answered = create(running, { x_batchd: { from } }).then(
      (made) => made,
      () => null,
    );
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 12));
    await running.server.kill();
    const made = await answered;
    running = await start(folder.path, upstream);
    const listed = (await running.openai.batches.list()).data.map((batch) => batch.id);
    if (made !== null) expect(listed).toContain(made);
  }
  const batches = (await running.openai.batches.list()).data;
  for (const retry of batches) {
    if (retry.id !== id) await running.server.batchEnded(retry.id);
    const input = await (await running.openai.files.content(retry.input_file_id)).text();
    expect(idsIn(input)).toHaveLength(LINES);
  }
  const merged = await Promise.all(batches.map((batch) => read(running, batch.id)));
  for (const { output_file_id } of merged) {
    const output = await (await running.openai.files.content(output_file_id!)).text();
    expect(idsIn(output)).toEqual(Array.from({ length: LINES }, (_, i) => `line-${i + 1}`));
  }
  const listed = (await running.openai.files.list({ limit: 100 })).data.length;
  const stored = () =>
    readdirSync(join(folder.path, "blobs"), { recursive: true, withFileTypes: true }).filter(
      (each) => each.isFile(),
    ).length;
  await running.server.kill();
  running = await start(folder.path, upstream);
  await expect.poll(stored, { timeout: 60_000 }).toBe(listed);
  await running.server.kill("SIGTERM");
}, 120_000);
