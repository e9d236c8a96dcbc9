/** A run that fails counts against its chunk, and its lines get rows once it has failed in every try. */
import { mkdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { FakeClock } from "../../support/fake-clock.ts";
import { pathsBelow } from "../../support/files-below.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";
import { startUpstream } from "../../support/upstream.ts";

const inputPath = (dataDir: string, fileId: string) => join(dataDir, "blobs/files", fileId);
const ids = (count: number) => Array.from({ length: count }, (_, i) => `line-${i + 1}`);

interface Tried {
  readonly id: string;
  readonly clock: FakeClock;
  readonly chunkCount?: number;
}

async function endsAfterTries(service: TestService, tried: Tried) {
  const end = service.ended(tried.id);
  await failsInTries(service, tried);
  await service.events.reached("chunk.given_up", { batch: tried.id });
  return end;
}

/** Lets the lease of each failed try run out. */
async function failsInTries(service: TestService, { id, clock, chunkCount = 1 }: Tried) {
  for (let failed = 1; failed <= 5; failed++) {
    await service.events.reached("chunk.failed", { batch: id, count: failed * chunkCount });
    // The lease is free again only once the run is over in every respect.
    await clock.asleep(1, clock.nowMs());
    clock.advance(31_000);
  }
}

test("a batch whose input is lost while it runs ends, with a row for each line", async () => {
  const clock = new FakeClock();
  using dir = temporaryFolder("batchd-damage-");
  await using upstream = await startUpstream();
  const options = { upstreamUrl: upstream.url, dataDir: dir.path, clock };
  const noGrace = { engine: { drain_grace_seconds: 0 } };
  const before = await startTestService({ ...options, config: noGrace });
  upstream.hold();
  const { id, input_file_id } = await before.submit(chatLines(4));
  await upstream.reached(4);
  await before.close();
  await rm(inputPath(dir.path, input_file_id));

  await using after = await startTestService(options);
  const batch = await endsAfterTries(after, { id, clock });

  expect(batch.status).toBe("completed");
  expect(batch.request_counts).toEqual({ total: 4, completed: 0, failed: 4 });
  const rows = await after.rows(batch.error_file_id);
  expect(rows.map(({ custom_id, error }) => [custom_id, error?.code])).toEqual(
    ids(4).map(() => [null, "input_unreadable"]),
  );
  expect(rows.map(({ error }) => error?.message.match(/\d+/)?.[0])).toEqual(["1", "2", "3", "4"]);
});

test("where the end of a mixed input is lost, the lines before it are named in their rows", async () => {
  const clock = new FakeClock();
  using dir = temporaryFolder("batchd-damage-");
  await using upstream = await startUpstream();
  const options = {
    clock,
    dataDir: dir.path,
    config: {
      engine: { drain_grace_seconds: 0 },
      limits: { allow_mixed_models: true },
      upstreams: ["one", "two"].map((name) => ({ name, base_url: upstream.url, models: [name] })),
    },
  };
  const before = await startTestService(options);
  upstream.hold();
  const { id, input_file_id } = await before.submit(
    ids(6).map((line, i) => chatLine(line, "fine", { model: ["one", "two"][i % 2]! })),
  );
  await upstream.reached(6);
  await before.close();
  const path = inputPath(dir.path, input_file_id);
  const text = await readFile(path, "utf8");
  await truncate(path, text.indexOf("line-5"));

  await using after = await startTestService(options);
  const batch = await endsAfterTries(after, { id, clock, chunkCount: 2 });

  expect(batch.request_counts).toEqual({ total: 6, completed: 0, failed: 6 });
  const rows = await after.rows(batch.error_file_id);
  expect(rows.map(({ custom_id, error }) => [custom_id, error?.code])).toEqual([
    ...ids(4).map((line) => [line, "internal_error"]),
    [null, "input_unreadable"],
    [null, "input_unreadable"],
  ]);
});

test("a line that fails in every try gets a row, and the others of its chunk their answers", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using other = await startUpstream();
  other.hold();
  await using service = await startTestService({
    clock,
    upstreamUrl: other.url,
    config: { engine: { drain_grace_seconds: 0 } },
  });
  const { id, input_file_id } = await service.submit([
    ...chatLines(1),
    chatLine("bad", "to be spoiled"),
    chatLine("last", "fine"),
  ]);
  await other.reached(3);
  await service.close();
  const path = inputPath(service.dataDir, input_file_id);
  const text = await readFile(path, "utf8");
  await writeFile(path, text.replace('"custom_id":"bad"', '"custom_ix":"bad"'));

  await using after = await startTestService({
    clock,
    upstreamUrl: upstream.url,
    dataDir: service.dataDir,
  });
  const batch = await endsAfterTries(after, { id, clock });

  expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
  expect(upstream.total).toBe(2);
  expect(await after.rows(batch.error_file_id)).toMatchObject([
    { custom_id: null, error: { code: "input_unreadable" } },
  ]);
  expect(after.events.count("chunk.given_up", { batch: id, lines: 1 })).toBe(1);
});

test("lines whose journal cannot be read in any try are sent again, and not given up", async () => {
  const clock = new FakeClock();
  using dir = temporaryFolder("batchd-damage-");
  await using upstream = await startUpstream();
  const options = { upstreamUrl: upstream.url, dataDir: dir.path, clock };
  const noGrace = { engine: { drain_grace_seconds: 0 } };
  const before = await startTestService({ ...options, config: noGrace });
  upstream.holdAfter(2);
  const { id } = await before.submit(chatLines(4));
  await upstream.reached(4);
  await before.events.reached("line.recorded", { count: 2 });
  await before.close();
  const journal = join(dir.path, "blobs/journal");
  const [segment, ...others] = pathsBelow(journal);
  expect(others).toEqual([]);
  // A folder in the place of a file cannot be read, and is not missing.
  const path = join(journal, segment!);
  await rm(path);
  await mkdir(path);
  upstream.release();

  await using after = await startTestService(options);
  const end = after.ended(id);
  await failsInTries(after, { id, clock });
  const batch = await end;

  expect(batch.request_counts).toEqual({ total: 4, completed: 4, failed: 0 });
  expect(await after.rows(batch.output_file_id)).toHaveLength(4);
});
