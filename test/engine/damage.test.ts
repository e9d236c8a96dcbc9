/** What was stored and cannot be read any more must not keep a batch from its end, nor cost more than it must. */
import { readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import Database from "better-sqlite3";
import { describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const DAMAGES: Record<string, (path: string) => Promise<void>> = {
  removed: (path) => rm(path),
  truncated: (path) => truncate(path, 100),
  "with one wrong bit": async (path) => {
    const bytes = await readFile(path);
    bytes[bytes.length - 40]! ^= 1;
    await writeFile(path, bytes);
  },
};

const blobPath = (dataDir: string, key: string) => join(dataDir, "blobs", key);

async function segmentsOf(dataDir: string, batchId: string): Promise<string[]> {
  const folder = blobPath(dataDir, `journal/${batchId}`);
  return (await readdir(folder)).sort().map((name) => join(folder, name));
}

/** Leaves the rows as versions before checksums wrote them. */
function forgetChecksums(dataDir: string): void {
  const database = new Database(join(dataDir, "batchd.sqlite"));
  database.exec(
    "update segments set crc32 = null, completed_count = null, failed_count = null, usage = null",
  );
  database.close();
}

const ids = (count: number, prefix = "line") =>
  Array.from({ length: count }, (_, i) => `${prefix}-${i + 1}`);

describe.each(Object.entries(DAMAGES))("a segment that is %s", (_name, damage) => {
  test("is noticed at a restart, and its lines are sent again, each answered once", async () => {
    using dir = temporaryFolder("batchd-damage-");
    await using upstream = await startUpstream();
    const options = {
      upstreamUrl: upstream.url,
      dataDir: dir.path,
      config: { engine: { drain_grace_seconds: 0 } },
    };
    const before = await startTestService(options);
    const { id } = await before.submit(chatLines(20, (n) => (n <= 12 ? "fine" : "[[hang x1]]")));
    await upstream.reached(20);
    await before.events.reached("line.recorded", { count: 12 });
    await before.close();
    for (const path of await segmentsOf(dir.path, id)) await damage(path);

    await using after = await startTestService(options);
    const batch = await after.ended(id);

    expect(after.events.count("journal.damaged", { batch: id })).toBeGreaterThan(0);
    await expectAllAnswered(after, batch.id, 20);
    expect(upstream.total).toBe(20 + 20);
  });

  test("is noticed at the end, and its lines are sent again while the window lasts", async () => {
    await using setup = await twoModels();
    const { service, upstream, slow, id, submitted } = setup;
    for (const path of await segmentsOf(service.dataDir, id)) await damage(path);
    slow.release();
    await service.ended(submitted.id);

    expect(service.events.count("batch.reopened", { batch: id, chunks: 1 })).toBe(1);
    await expectAllAnswered(service, id, 6);
    expect([upstream.total, slow.total]).toEqual([10, 1]);
  });

  test("leaves rows in the error file when the batch was cancelled meanwhile", async () => {
    await using setup = await twoModels();
    const { service, slow, id } = setup;
    for (const path of await segmentsOf(service.dataDir, id)) await damage(path);
    await service.openai.batches.cancel(id);
    slow.release();
    const batch = await service.ended(id);

    expect(batch.status).toBe("cancelled");
    const errors = await service.rows(batch.error_file_id);
    expect(errors.map(({ custom_id }) => custom_id)).toEqual(ids(5, "quick"));
    expect(new Set(errors.map(({ error }) => error?.code))).toEqual(new Set(["answer_lost"]));
    const output = await service.rows(batch.output_file_id);
    expect(batch.request_counts).toEqual({ total: 6, completed: output.length, failed: 5 });
    expect(batch.usage?.total_tokens).toBe(tokensIn(output));
  });
});

test.each([
  { which: "first", damagedIndex: 0, lostIds: ids(8).slice(0, 4) },
  { which: "last", damagedIndex: 1, lostIds: ids(8).slice(4) },
])(
  "of two segments of a chunk the $which is damaged: only its lines are sent again",
  async (each) => {
    using dir = temporaryFolder("batchd-damage-");
    await using upstream = await startUpstream();
    const options = {
      upstreamUrl: upstream.url,
      dataDir: dir.path,
      config: { engine: { drain_grace_seconds: 0 } },
    };
    const before = await startTestService(options);
    // Four lines are answered at the first start, four at the second, and four at the third.
    const { id } = await before.submit(
      chatLines(12, (n) => (n <= 4 ? "fine" : `[[hang x${n <= 8 ? 1 : 2}]]`)),
    );
    await upstream.reached(12);
    await before.events.reached("line.recorded", { count: 4 });
    await before.close();
    const between = await startTestService(options);
    await upstream.reached(12 + 8);
    await between.events.reached("line.recorded", { count: 4 });
    await between.close();
    const segments = await segmentsOf(dir.path, id);
    expect(segments).toHaveLength(2);
    await truncate(segments[each.damagedIndex]!, 100);

    await using after = await startTestService(options);
    await after.ended(id);

    expect(after.events.count("journal.damaged", { batch: id })).toBe(1);
    await expectAllAnswered(after, id, 12);
    // Lines that hung were sent once more before.
    const timesSent = ids(8).map((line, i) => upstream.received.get(line)! - (i < 4 ? 1 : 2));
    expect(ids(8).filter((_, i) => timesSent[i] === 1)).toEqual(each.lostIds);
    expect(timesSent.filter((times) => times > 1)).toEqual([]);
  },
);

test("a damaged segment of an older version is noticed too, and its counts are put right", async () => {
  await using setup = await twoModels();
  const { service, slow, id } = setup;
  forgetChecksums(service.dataDir);
  for (const path of await segmentsOf(service.dataDir, id)) await truncate(path, 100);
  slow.release();
  await service.ended(id);
  const batch = await service.openai.batches.retrieve(id);
  expect(batch.status).toBe("completed");
  expect(batch.request_counts).toEqual({ total: 6, completed: 6, failed: 0 });
});

test("a segment of an older version is read without a checksum", async () => {
  await using setup = await twoModels();
  const { service, upstream, slow, id } = setup;
  forgetChecksums(service.dataDir);
  slow.release();
  await service.ended(id);
  expect((await service.openai.batches.retrieve(id)).request_counts?.completed).toBe(6);
  expect(upstream.total).toBe(5);
});

test("a batch whose input is gone before it is validated fails, and says why", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const input_file_id = await service.upload(chatLines(3));
  await rm(blobPath(service.dataDir, `files/${input_file_id}`));
  const { id } = await createBatch(service.openai, input_file_id);
  const batch = await service.ended(id);
  expect(batch.status).toBe("failed");
  expect(batch.errors?.data).toMatchObject([{ code: "input_unreadable", line: null }]);
});

/** A batch of which the chunk of one model is closed, while the other's is not answered yet. */
async function twoModels() {
  const upstream = await startUpstream();
  const slow = await startUpstream();
  slow.hold();
  const service = await startTestService({
    config: {
      limits: { allow_mixed_models: true },
      upstreams: [
        { name: "quick", base_url: upstream.url, models: ["quick"] },
        { name: "slow", base_url: slow.url, models: ["slow"] },
      ],
    },
  });
  const submitted = await service.submit([
    ...ids(5, "quick").map((id) => chatLine(id, "fine", { model: "quick" })),
    chatLine("slow-1", "fine", { model: "slow" }),
  ]);
  const { id } = submitted;
  await service.events.reached("journal.flushed", { batch: id });
  await service.events.reached("chunk.ended", { batch: id });
  await slow.reached(1);
  return {
    service,
    upstream,
    slow,
    id,
    submitted,
    [Symbol.asyncDispose]: async () => {
      for (const each of [service, upstream, slow]) await each[Symbol.asyncDispose]();
    },
  };
}

async function expectAllAnswered(service: TestService, id: string, count: number): Promise<void> {
  const batch = await service.openai.batches.retrieve(id);
  expect(batch.status).toBe("completed");
  expect(batch.request_counts).toEqual({ total: count, completed: count, failed: 0 });
  const rows = await service.rows(batch.output_file_id);
  expect(new Set(rows.map(({ custom_id }) => custom_id)).size).toBe(count);
  expect(rows).toHaveLength(count);
  expect(batch.usage?.total_tokens).toBe(tokensIn(rows));
}

const tokensIn = (rows: Awaited<ReturnType<TestService["rows"]>>) =>
  rows.reduce((sum, { response }) => {
    const body = response!.body as { usage: { total_tokens: number } };
    return sum + body.usage.total_tokens;
  }, 0);
