/** A batch is deleted while the server works on it: nothing of it is left, and other batches notice nothing. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import Database from "better-sqlite3";
import { afterAll, afterEach, expect, test } from "vitest";
import type { Store } from "../../src/store/store.ts";
import { createBatch } from "../support/batches.ts";
import { derive } from "../support/derived.ts";
import { namesBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { blobsAround, GatedBlobs } from "../support/gated-blobs.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const wrapped = blobsAround(GatedBlobs);
/** It is called between the commit that ends a batch and what the server does next. */
let afterEnd: (id: string) => Promise<unknown> = async () => {};
const upstream = forAllTests(await startUpstream());
const service = forAllTests(
  await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 8 }],
      engine: { stop_grace_seconds: 0 },
      prices: [{ model: "*", per_request: "1", currency: "EUR" }],
    },
    openStorage: async (places, deps) => {
      const opened = await wrapped.open(places, deps);
      if (!opened.ok) return opened;
      const { store } = opened;
      const finishBatchIfLeased: Store["finishBatchIfLeased"] = async (lease, result) => {
        const isFinished = await store.finishBatchIfLeased(lease, result);
        await afterEnd(lease.batchId);
        return isFinished;
      };
      return { ...opened, store: { ...store, finishBatchIfLeased } };
    },
  }),
);
const blobs = wrapped.blobs();
afterAll(() => upstream.release());

/** Every third line fails. */
const lines = (count: number) => chatLines(count, (n) => (n % 3 === 0 ? "[[status 400]]" : "Hi"));

const ask = (path: string, init?: RequestInit) => fetch(`${service.url}/v1/${path}`, init);
const remove = (id: string, query = "?files=input") =>
  ask(`batches/${id}${query}`, { method: "DELETE" });

/** Deletes a batch, and expects that no client sees it, or a file of it, from then on. */
async function removeAndLook(id: string, { kept = [] }: { kept?: readonly string[] } = {}) {
  expect((await remove(id)).status).toBe(200);
  const paths = ["", "/output", "/errors", "/lines", "/failures", "/progress", "/run"];
  const statuses = paths.map(async (path) => (await ask(`batches/${id}${path}`)).status);
  expect(new Set(await Promise.all(statuses))).toEqual(new Set([404]));
  for (const action of ["pause", "resume", "cancel"]) {
    expect((await ask(`batches/${id}/${action}`, { method: "POST" })).status).toBe(404);
  }
  const listed = (await service.openai.batches.list()).data.map((batch) => batch.id);
  expect(listed).not.toContain(id);
  const files = (await service.openai.files.list()).data.map((file) => file.id);
  expect(files.filter((file) => !kept.includes(file))).toEqual([]);
}

/** The rows and blobs of batches and files that are left. */
async function leftovers() {
  const db = new Database(join(service.dataDir, "batchd.sqlite"), { readonly: true });
  const tables = [
    "batches",
    "chunks",
    "segments",
    "batch_progress",
    "batch_runs",
    "reservations",
    "deliveries",
    "batch_deliveries",
    "files",
  ];
  const rows = tables.flatMap((table) => {
    const { n } = db.prepare(`select count(*) as n from ${table}`).get() as { n: number };
    return n === 0 ? [] : [`${n} in ${table}`];
  });
  db.close();
  return [...rows, ...namesBelow(join(service.dataDir, "blobs"))];
}

async function lostLeases(): Promise<number> {
  const metrics = await (await fetch(`${service.url}/metrics`)).text();
  const lost = /batchd_lease_changes_total\{[^}]*kind="batch"[^}]*change="lost"[^}]*\} (\d+)/;
  return Number(lost.exec(metrics)?.[1] ?? 0);
}

/** The sweep looks again at each deletion. */
afterEach(async () => {
  blobs.puts.open();
  blobs.reads.open();
  for (const { id } of (await service.openai.batches.list()).data) await remove(id);
  for (const { id } of (await service.openai.files.list()).data)
    await service.openai.files.delete(id);
  await expect.poll(leftovers).toEqual([]);
});

/** Runs `count` lines, a third of which fails, and expects the results of a batch that nothing has disturbed. */
async function runsUnharmed(id: string, count: number) {
  const { status, request_counts, output_file_id } = await service.ended(id);
  const failed = Math.floor(count / 3);
  expect([status, request_counts]).toEqual([
    "completed",
    { total: count, completed: count - failed, failed },
  ]);
  expect(await service.rows(output_file_id)).toHaveLength(count - failed);
}

test("while it is validated", async () => {
  const input = await service.upload(lines(30));
  const otherInput = await service.upload(lines(9));
  const create = (input_file_id: string) => createBatch(service.openai, input_file_id);
  blobs.reads.close(`files/${input}`);
  const { id } = await create(input);
  await blobs.reads.reached();
  await removeAndLook(id, { kept: [otherInput] });
  const other = await create(otherInput);
  await runsUnharmed(other.id, 9);
  const sent = upstream.total;
  blobs.reads.open();
  await service.events.reached("batch.removed", { batch: id });
  expect(upstream.total).toBe(sent);
  expect(service.events.count("batch.started", { batch: id })).toBe(0);
});

test("while it is finalized, before and after its files are written", async () => {
  for (const prefix of ["files/", "none"]) {
    const otherInput = await service.upload(lines(9));
    const { id } = await service.submit(lines(30));
    blobs.puts.close(prefix);
    if (prefix === "files/") await blobs.puts.reached();
    await removeAndLook(id, { kept: [otherInput] });
    blobs.puts.open();
    const other = await createBatch(service.openai, otherInput);
    await runsUnharmed(other.id, 9);
    await service.events.reached("batch.removed", { batch: id });
    expect(service.events.count("batch.completed", { batch: id })).toBe(0);
    await remove(other.id);
  }
});

test("while its journal is merged: no damage of the journal is reported, as the sweep has removed it", async () => {
  blobs.reads.close("journal/");
  const { id } = await service.submit(lines(30));
  await blobs.reads.reached();
  await removeAndLook(id);
  await service.events.reached("batch.removed", { batch: id });
  const lostBefore = await lostLeases();
  blobs.reads.open();
  await expect.poll(lostLeases).toBeGreaterThan(lostBefore);
  expect(service.events.count("journal.damaged", { batch: id })).toBe(0);
});

test("while a run that lost its lease reads: no damage is reported of what the sweep has removed", async () => {
  const sent = upstream.total;
  upstream.hold();
  const { id, input_file_id: file } = await service.submit(lines(30));
  await upstream.reached(sent + 1);
  await ask(`batches/${id}/pause`, { method: "POST" });
  upstream.release();
  await service.events.reached("chunk.ended", { batch: id, ended: "pause" });
  blobs.reads.close("journal/");
  await ask(`batches/${id}/resume`, { method: "POST" });
  await blobs.reads.reached();
  await remove(id);
  const db = new Database(join(service.dataDir, "batchd.sqlite"));
  db.exec("update chunks set lease_expires_at_ms = 0 where lease_expires_at_ms is not null");
  db.close();
  await service.events.reached("batch.removed", { batch: id });
  await service.events.reached("file.removed", { file });
  blobs.reads.open();
  await service.events.reached("chunk.ended", { batch: id, ended: "lease" });
  for (const event of ["journal.damaged", "chunk.failed"]) {
    expect(service.events.count(event, { batch: id })).toBe(0);
  }
});

test("right after its end: nothing says that it has ended in another way", async () => {
  afterEnd = (batch) => remove(batch);
  const { id } = await service.submit(lines(9));
  await service.events.reached("batch.removed", { batch: id });
  afterEnd = async () => {};
  const said = service.events.all.filter(({ batch }) => batch === id).map(({ event }) => event);
  expect(said).not.toContain("batch.finalizing");
  const metrics = await (await fetch(`${service.url}/metrics`)).text();
  expect(metrics).not.toMatch(/batchd_batches_ended_total\{[^}]*"finalizing"/);
});

test("while the input of its retry is made: the retry fails, and says why", async () => {
  const source = await service.run(lines(30));
  blobs.puts.close("files/");
  const { batch: retry } = await derive(service, {
    batch: source.id,
    lines: "failed",
    merge: true,
  });
  await blobs.puts.reached();
  await removeAndLook(source.id);
  blobs.puts.open();
  const { status, errors } = await service.ended(retry.id);
  expect([status, errors?.data?.[0]?.code]).toEqual(["failed", "source_unusable"]);
});

test("while its retry is deleted, too, and the input of the retry is made", async () => {
  const source = await service.run(lines(30));
  blobs.puts.close("files/");
  const { batch: retry } = await derive(service, { batch: source.id, lines: "failed" });
  await blobs.puts.reached();
  await Promise.all([remove(source.id), remove(retry.id)]);
  blobs.puts.open();
  await service.events.reached("batch.removed", { batch: source.id });
  await service.events.reached("batch.removed", { batch: retry.id });
});

test("while its retry is validated, runs or is finalized: a merged retry has all lines all the same", async () => {
  for (const moment of ["validated", "running", "finalized"]) {
    const source = await service.run(lines(30));
    const kept = [source.output_file_id, source.error_file_id, source.input_file_id];
    if (moment === "validated") blobs.reads.close("files/");
    const sent = upstream.total;
    if (moment === "running") upstream.hold();
    const { batch: retry } = await derive(service, {
      batch: source.id,
      lines: "failed",
      merge: true,
    });
    if (moment === "validated") {
      await blobs.reads.reached();
      blobs.reads.open();
      await service.events.reached("input.derived", { batch: retry.id });
    }
    if (moment === "running") await upstream.reached(sent + 1);
    if (moment === "finalized") {
      await service.events.reached("batch.started", { batch: retry.id });
      blobs.puts.close("files/");
      await blobs.puts.reached();
    }
    await removeAndLook(source.id, { kept: [retry.input_file_id] });
    upstream.release();
    blobs.puts.open();
    const ended = await service.ended(retry.id);
    expect(ended.status).toBe("completed");
    expect(await service.rows(ended.output_file_id)).toHaveLength(20);
    expect(await service.rows(ended.error_file_id)).toHaveLength(10);
    await remove(retry.id);
    expect(kept).not.toContain(null);
  }
});

test("while its results are read: each stream ends, and none claims to have all lines", async () => {
  const { id, output_file_id } = await service.run(chatLines(50, () => "[[big 200000]]"));
  const events = { headers: { accept: "text/event-stream" } };
  // Nothing of the bodies is read before the batch is gone: most of the 10 MB are still to be sent.
  const streams = await Promise.all([
    ask(`batches/${id}/output`),
    ask(`batches/${id}/output`, events),
    ask(`files/${output_file_id}/content`),
  ]);
  await removeAndLook(id);
  await service.events.reached("batch.removed", { batch: id });
  for (const stream of streams) {
    const text = await stream.text().catch(() => null);
    if (text === null) continue;
    const rows = text.match(/"custom_id":"line-\d+"/g) ?? [];
    if (!text.includes('"status":"deleted"')) expect(rows).toHaveLength(50);
  }
});

test("while its lines are read from the journal: the streams say that it was deleted", async () => {
  upstream.release();
  const { id } = await service.submit(chatLines(301, (n) => (n === 301 ? "[[hang]]" : "Hi")));
  await service.events.reached("line.recorded", { batch: id, count: 300 });
  const events = { headers: { accept: "text/event-stream" } };
  const stream = await ask(`batches/${id}/output`, events);
  const wait = ask(`batches/${id}/errors?wait=60`);
  await removeAndLook(id);
  expect(await stream.text()).toContain(`event: end\ndata: {"id":"${id}","status":"deleted"}`);
  expect((await wait).status).toBe(404);
});

test("an input that is deleted while a page of lines is read is missing from the page", async () => {
  const { id, input_file_id: input } = await service.run(lines(2));
  blobs.reads.close(`files/${input}`);
  const reading = ask(`batches/${id}/lines`);
  await blobs.reads.reached();
  await service.openai.files.delete(input);
  await expect.poll(() => readdir(join(service.dataDir, "blobs/files"))).not.toContain(input);
  blobs.reads.open();
  const read = await reading;
  expect(read.status).toBe(200);
  const { data } = (await read.json()) as { readonly data: readonly { readonly request: null }[] };
  expect(data.map(({ request }) => request)).toEqual([null, null]);
  await removeAndLook(id);
});

test("while its results are opened: their reader learns that they were deleted", async () => {
  const events = { headers: { accept: "text/event-stream" } };
  for (const [kind, path, init, found] of [
    ["output", "/output", {}, [409, "The result file of this batch was deleted."]],
    ["error", "/errors", {}, [409, "The result file of this batch was deleted."]],
    ["error", "/failures", {}, [200, '"lines":3,"examples":[]']],
    ["output", "/output", events, [200, '"status":"deleted"']],
  ] as const) {
    const { id } = await service.submit(lines(9));
    const { output_file_id, error_file_id } = await service.ended(id);
    const file = kind === "output" ? output_file_id : error_file_id;
    blobs.reads.close(`files/${file}`);
    const answer = ask(`batches/${id}${path}`, init).then(async (it) => [
      it.status,
      await it.text(),
    ]);
    await blobs.reads.reached();
    expect((await remove(id)).status).toBe(200);
    await service.events.reached("file.removed", { file });
    blobs.reads.open();
    const [status, text] = await answer;
    expect([path, status, text]).toEqual([path, found[0], expect.stringContaining(found[1])]);
  }
});

test("an input that is deleted while a batch with a budget is made of it fails the batch", async () => {
  const file = await service.upload(lines(3));
  blobs.reads.close(`files/${file}`);
  const request = { endpoint: "/v1/chat/completions", completion_window: "24h" };
  const body = { ...request, input_file_id: file, x_batchd: { budget: "5" } };
  const answer = ask("batches", { method: "POST", body: JSON.stringify(body) });
  await blobs.reads.reached();
  await service.openai.files.delete(file);
  await service.events.reached("file.removed", { file });
  blobs.reads.open();
  const response = await answer;
  expect(response.status).toBe(200);
  const made = (await response.json()) as { readonly id: string };
  expect((await service.ended(made.id)).errors?.data?.[0]?.message).toContain("Cannot find file");
});
