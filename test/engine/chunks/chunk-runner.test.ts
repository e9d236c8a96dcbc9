import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import type { BatchObject } from "../../../src/contract/batch.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { refusal } from "../../support/given.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

async function temporaryDir() {
  const path = await mkdtemp(join(tmpdir(), "batchd-restart-"));
  return {
    path,
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }),
  };
}

const answersOnlyFirst = (answered: number) => (n: number) =>
  n <= answered ? "fine" : "[[hang x1]]";

test("a batch goes on after a restart and repeats only what was in flight", async () => {
  await using dir = await temporaryDir();
  await using upstream = await startUpstream();
  const options = {
    upstreamUrl: upstream.url,
    dataDir: dir.path,
    config: { engine: { drain_grace_seconds: 0 } },
  };
  const before = await startTestService(options);
  const { id } = await before.submit(chatLines(20, answersOnlyFirst(12)));
  await upstream.reached(20);
  await before.close();

  await using after = await startTestService(options);
  const batch = await after.ended(id);

  expect(batch.request_counts).toEqual({ total: 20, completed: 20, failed: 0 });
  const sent = [...upstream.received].map(([line, count]) => [Number(line.slice(5)), count]);
  expect(sent.sort((a, b) => a[0]! - b[0]!)).toEqual(
    Array.from({ length: 20 }, (_, i) => [i + 1, i + 1 <= 12 ? 1 : 2]),
  );
  const rows = await after.rows(batch.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(chatLines(20).map((_, i) => `line-${i + 1}`));
});

test("that all lines of a batch failed alike is still known after a restart", async () => {
  await using dir = await temporaryDir();
  const given = refusal(400, { message: "max_tokens is too large", code: "invalid_value" });
  await using upstream = await startUpstream({ answers: () => given });
  const options = { upstreamUrl: upstream.url, dataDir: dir.path };
  const before = await startTestService(options);
  const { id } = await before.run(chatLines(60));
  await before.close();

  await using after = await startTestService(options);
  const { x_batchd } = (await after.openai.batches.retrieve(id)) as unknown as BatchObject;

  const known = { lines: 50, status_code: 400, code: "invalid_value", message: null };
  expect(x_batchd.common_failure).toEqual(known);
});

test("a batch that stopped between its last answer and the end of its chunk ends after a restart, and sends nothing again", async () => {
  await using dir = await temporaryDir();
  // Such an answer is in the journal before its chunk ends.
  const given = { body: { text: "x".repeat(2 * 1024 * 1024) } };
  await using upstream = await startUpstream({ answers: () => given });
  const options = { upstreamUrl: upstream.url, dataDir: dir.path };
  const before = await startTestService(options);
  const changeTables = (statement: string) => {
    const database = new Database(join(dir.path, "batchd.sqlite"));
    database.exec(statement);
    database.close();
  };
  changeTables(`create trigger refuse before update of closed_at_ms on chunks
    begin select raise(abort, 'refused'); end`);
  const { id } = await before.submit(chatLines(1));
  await before.events.reached("chunk.failed", { batch: id });
  await before.close();
  changeTables("drop trigger refuse");

  await using after = await startTestService(options);
  const batch = await after.ended(id);

  expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
  expect(upstream.total).toBe(1);
});

test("a drain waits for the answers that come within its grace", async () => {
  await using dir = await temporaryDir();
  await using upstream = await startUpstream();
  const options = { upstreamUrl: upstream.url, dataDir: dir.path };
  const before = await startTestService(options);
  upstream.hold();
  const { id } = await before.submit(chatLines(5));
  await upstream.reached(5);
  const closing = before.close();
  upstream.release();
  await closing;

  await using after = await startTestService(options);
  await after.ended(id);

  expect(upstream.total).toBe(5);
});

test("a finished batch leaves its files and nothing of its journal", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run(chatLines(5));
  await service.events.reached("journal.removed", { batch: batch.id });

  const left = await readdir(join(service.dataDir, "blobs"), { recursive: true });
  const files = left.filter((name) => name.includes("file-"));
  expect(files.sort()).toEqual(
    [`files/${batch.input_file_id}`, `files/${batch.output_file_id}`].sort(),
  );
  expect(left.filter((name) => name.includes(batch.id))).toEqual([]);
});

test("an input file deleted while its batch runs is read to the end, then removed", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 4 }],
    },
  });
  upstream.hold();
  const { id, input_file_id } = await service.submit(chatLines(700));
  await upstream.reached(4);

  await service.openai.files.delete(input_file_id);
  upstream.release();

  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 700, completed: 700, failed: 0 });
  await service.events.reached("file.removed", { file: input_file_id });
  await expect(service.openai.files.retrieve(input_file_id)).rejects.toMatchObject({ status: 404 });
});

test.each([
  ["answers that come fast are in the journal a tenth of a second later", 60, 40, 100],
  ["a few answers wait for half a second for more of them, and share a segment", 8, 4, 500],
])("%s", async (_name, total, answered, waitMs) => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock,
    config: { engine: { drain_grace_seconds: 0 } },
  });
  const { id } = await service.submit(chatLines(total, answersOnlyFirst(answered)));
  await service.events.reached("line.recorded", { count: answered });

  clock.advance(waitMs);

  await service.events.reached("journal.flushed", { batch: id, lines: answered });
});
