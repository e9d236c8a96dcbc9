/** What a journal promises when its lease is lost or its disk takes nothing. */
import { readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { FakeClock } from "../../support/fake-clock.ts";
import { startHeldBatch } from "../../support/held-batch.ts";
import { LEASE_OVER_MS, type Replica, startReplicas } from "../../support/replicas.ts";
import { chatLines, startTestService, type TestService } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";
import { startUpstream } from "../../support/upstream.ts";

const FLUSH_MS = 500;
const RETRY_MS = 1_000;

/** A file where the folder of the journals is to be: no segment can be written until it is removed. */
async function blockJournals(dataDir: string): Promise<() => Promise<void>> {
  const path = join(dataDir, "blobs/journal");
  await writeFile(path, "in the way");
  return () => rm(path);
}

const oneAtATime = (url: string, more: object = {}) => ({
  config: {
    ...more,
    upstreams: [{ name: "one", base_url: url, models: ["*"], max_concurrency: 1 }],
  },
});

const ask = (service: TestService) =>
  service.openai.chat.completions.create({
    model: "test-model",
    messages: [{ role: "user", content: "Hi" }],
  });

/**
 * Resolves once the replica knows that it has lost the chunk. The sweep of the other replica may remove the file that
 * this one is writing, which then tries once more.
 */
async function loses({ service, clock }: Replica, id: string): Promise<void> {
  const ended = service.events.reached("chunk.ended", { batch: id, ended: "lease" });
  const swept = service.events.reached("journal.write_failed", { batch: id });
  await Promise.race([ended, swept]);
  clock.advance(RETRY_MS);
  await ended;
}

test("answers that come after the lease is lost are not counted, and their segment is garbage", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b, dataDir } = replicas;
  upstream.hold();
  const { id } = await a.service.submit(chatLines(4));
  await upstream.reached(4);
  b.clock.advance(LEASE_OVER_MS);
  await upstream.reached(8);
  b.blobs.puts.close("journal/");

  // The answers of both come, and those of `a` are written first.
  upstream.release();
  await b.blobs.puts.reached();
  await loses(a, id);
  expect((await a.service.openai.batches.retrieve(id)).request_counts?.completed).toBe(0);
  expect(await readdir(join(dataDir, `blobs/journal/${id}`))).toHaveLength(1);
  b.blobs.puts.open();

  const batch = await b.service.ended(id);
  expect(batch.request_counts).toEqual({ total: 4, completed: 4, failed: 0 });
  const tokens = batch.usage?.total_tokens ?? 0;
  const rows = await b.service.rows(batch.output_file_id);
  const ofRows = rows.map(({ response }) => response?.body["usage"] as { total_tokens: number });
  expect(tokens).toBe(ofRows.reduce((sum, { total_tokens }) => sum + total_tokens, 0));
});

test("a lost lease is no fault of the disk: the replica goes on with other work", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  upstream.hold();
  const { id } = await a.service.submit(chatLines(4));
  await upstream.reached(4);
  b.clock.advance(LEASE_OVER_MS);
  await upstream.reached(8);
  upstream.release();
  await b.service.ended(id);
  await loses(a, id);

  await b.service.close();
  expect((await fetch(`${a.service.url}/ready`)).status).toBe(200);
  expect((await a.service.run(chatLines(2))).request_counts?.completed).toBe(2);
  expect(a.service.events.count("journal.write_failed")).toBeLessThanOrEqual(1);
});

test("a segment that cannot be written is tried again until it can, and its lines are sent once", async () => {
  await using held = await startHeldBatch(3);
  const { clock, upstream, service, id } = held;
  const unblock = await blockJournals(service.dataDir);
  upstream.release();
  for (let tries = 1; tries <= 3; tries++) {
    await service.events.reached("journal.write_failed", { count: tries });
    await clock.asleep(1, clock.nowMs() + RETRY_MS);
    if (tries === 3) await unblock();
    clock.advance(RETRY_MS);
  }
  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  expect(await service.rows(batch.output_file_id)).toHaveLength(3);
  expect(upstream.total).toBe(3);
});

test("while a journal cannot be written no other chunk is started", async () => {
  await using held = await startHeldBatch(1);
  const { clock, upstream, service, id } = held;
  const unblock = await blockJournals(service.dataDir);
  upstream.release();
  await service.events.reached("journal.write_failed");

  const { id: other } = await service.submit(chatLines(1));
  await service.events.reached("batch.started", { batch: other });
  for (let n = 0; n < 3; n++) await ask(service);
  expect(service.events.count("chunk.claimed", { batch: other })).toBe(0);

  await unblock();
  clock.advance(RETRY_MS);
  await service.ended(id);
  clock.advance(RETRY_MS);
  await service.ended(other);
});

test("answers that cannot be written hold back the lines behind them", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, ...oneAtATime(upstream.url) });
  upstream.hold();
  const { id } = await service.submit(chatLines(8, () => "[[big 3000000]]"));
  await upstream.reached(1);
  const unblock = await blockJournals(service.dataDir);
  upstream.release();
  // The first is being written. The three behind it have more than 8 MiB together.
  await service.events.reached("line.recorded", { batch: id, count: 4 });
  for (let n = 0; n < 5; n++) await ask(service);
  // One was on its way, and one had asked for its slot.
  expect(service.events.count("line.recorded", { batch: id })).toBeLessThanOrEqual(6);

  await unblock();
  clock.advance(RETRY_MS);
  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 8, completed: 8, failed: 0 });
  expect(await service.rows(batch.output_file_id)).toHaveLength(8);
});

test("a megabyte of answers is written at once, without waiting for more", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    clock,
    ...oneAtATime(upstream.url, { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } }),
  });
  const { id } = await service.submit(
    chatLines(3, (n) => (n < 3 ? "[[big 600000]]" : "[[hang x1]]")),
  );
  await service.events.reached("journal.flushed", { batch: id, lines: 2 });
});

test("a server that leaves while its journal cannot be written ends, and its lines run again", async () => {
  using dir = temporaryFolder("batchd-journal-");
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  const options = {
    clock,
    dataDir: dir.path,
    upstreamUrl: upstream.url,
    config: { engine: { drain_grace_seconds: 0 } },
  };
  const before = await startTestService(options);
  upstream.hold();
  const { id } = await before.submit(chatLines(3, (n) => (n === 3 ? "[[hang x1]]" : "fine")));
  await upstream.reached(3);
  const unblock = await blockJournals(dir.path);
  upstream.release();
  await before.events.reached("line.recorded", { count: 2 });
  clock.advance(FLUSH_MS);
  await before.events.reached("journal.write_failed");
  await before.close();
  await unblock();

  await using after = await startTestService(options);
  const batch = await after.ended(id);
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  expect(await after.rows(batch.output_file_id)).toHaveLength(3);
  expect(upstream.total).toBe(6);
});
