import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { namesBelow } from "../support/files-below.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const remove = async ({ url }: TestService, id: string, query = "") => {
  const response = await fetch(`${url}/v1/batches/${id}${query}`, { method: "DELETE" });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
};

const blobsOf = ({ dataDir }: TestService) => namesBelow(join(dataDir, "blobs"));

/** Counts the rows of every table that may speak of a batch or its files. */
function rowsOf({ dataDir }: TestService): Record<string, number> {
  const db = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
  const counts = ["batches", "chunks", "segments", "deliveries", "files"].map((table) => {
    const { n } = db.prepare(`select count(*) as n from ${table}`).get() as { n: number };
    return [table, n] as const;
  });
  db.close();
  return Object.fromEntries(counts);
}

const NOTHING = { batches: 0, chunks: 0, segments: 0, deliveries: 0, files: 0 };

test("an ended batch is gone at once, and leaves no row and no byte", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const lines = chatLines(40, (n) => (n % 4 === 0 ? "[[status 400]]" : "fine"));
  const batch = await service.run(lines);
  const { status, body } = await remove(service, batch.id, "?files=input");
  expect([status, body]).toEqual([200, { id: batch.id, object: "batch", deleted: true }]);

  await expect(service.openai.batches.retrieve(batch.id)).rejects.toThrow(/404 No batch found/);
  expect((await service.openai.batches.list()).data).toEqual([]);
  expect((await service.openai.files.list()).data).toEqual([]);
  for (const file of [batch.output_file_id, batch.error_file_id, batch.input_file_id]) {
    await expect(service.openai.files.content(file!)).rejects.toThrow(/404/);
  }
  await service.events.reached("batch.removed", { batch: batch.id });
  await service.events.reached("file.removed", { count: 3 });
  await expect.poll(() => rowsOf(service)).toEqual(NOTHING);
  expect(blobsOf(service)).toEqual([]);
});

test("without files=input the input stays, and serves another batch", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id, input_file_id } = await service.run(chatLines(3));
  await remove(service, id);
  const again = await createBatch(service.openai, input_file_id);
  expect((await service.ended(again.id)).request_counts?.completed).toBe(3);
});

test("a running batch ends without results, and sends nothing more", async () => {
  await using upstream = await startUpstream();
  const entry = { name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 };
  await using service = await startTestService({
    config: { upstreams: [entry], engine: { stop_grace_seconds: 0 } },
  });
  upstream.hold();
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(2);
  expect((await remove(service, id, "?files=input")).status).toBe(200);
  await service.events.reached("chunk.ended", { batch: id, ended: "batch" });
  upstream.release();
  await service.run(chatLines(5, () => "Other"));
  expect(upstream.total).toBe(2 + 5);
  expect(service.events.count("batch.cancelled", { batch: id })).toBe(0);
  // The next deletion has the sweep look again.
  const [last] = (await service.openai.batches.list()).data;
  await remove(service, last!.id, "?files=input");
  await service.events.reached("batch.removed", { batch: id });
  await expect.poll(() => rowsOf(service)).toEqual(NOTHING);
  await expect.poll(() => blobsOf(service)).toEqual([]);
});

test("a running batch is removed once its run has ended, not with a later sweep", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    // No loop comes to its next pass by itself.
    clock: new FakeClock(Date.now()),
    config: { engine: { stop_grace_seconds: 0 } },
  });
  upstream.hold();
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(2);
  await remove(service, id, "?files=input");
  await service.events.reached("batch.removed", { batch: id });
});

test("a batch that is deleted while it waits for validation never runs", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.submit(chatLines(3));
  expect((await remove(service, id)).status).toBe(200);
  const sent = upstream.total;
  expect((await service.run(chatLines(2))).status).toBe("completed");
  expect(upstream.total).toBe(sent + 2);
});

test.each([
  ["?files=all", 400, "invalid_value", "Invalid value: 'all'. Value must be 'input'."],
  ["?files=", 400, "invalid_value", "Invalid value: ''. Value must be 'input'."],
  ["?file=input", 400, "unknown_parameter", "Unknown parameter: 'file'."],
])("%s is refused, and deletes nothing", async (query, wanted, code, message) => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run(chatLines(1));
  const { status, body } = await remove(service, id, query);
  expect([status, body["error"]]).toMatchObject([wanted, { code, message }]);
  expect((await service.openai.batches.retrieve(id)).status).toBe("completed");
  expect((await remove(service, id, "?api-version=1")).status).toBe(200);
  expect((await remove(service, id)).status).toBe(404);
});
