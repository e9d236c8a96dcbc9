/**
 * What a commit names outlives a power cut: its bytes, their name and their folders are synced before the commit, and
 * the commit is synced before its answer. A power cut cannot be had in a test. What decides is the order of writes,
 * syncs, renames and commits of a real server, which a recorder writes down (test/support/recorder).
 */
import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import OpenAI, { toFile } from "openai";
import { beforeAll, describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { BatchdProcess, SOURCES } from "../support/process.ts";
import { canTrace } from "../support/programs.ts";
import { type Commit, Disk, readSteps } from "../support/recorder/disk.ts";
import type { Step } from "../support/recorder/record.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const PRELOAD = fileURLToPath(new URL("../support/recorder/preload.ts", import.meta.url));
const BLOB_KEY = /^(?:files|parts|journal)\//;
/** SQLite's number for `synchronous = FULL`. */
const FULL = 2;
/** Statements that give or renew the right to write. A power cut takes the holder of the right along. */
const RIGHTS =
  /^(?:update "(?:batches|chunks|deliveries)" set "lease_|(?:insert into|update) "(?:blob_intents|idempotency_keys)")/;
/** Statements that are done again after a power cut: removals, and the samples of a batch that still runs. */
const DONE_AGAIN =
  /^(?:delete from "(?:segments|chunks|reservations)"|update "batches" set "has_chunks"|insert into "batch_progress")/;
/** Says that a delivery has ended. Its address is one of the values. */
const DELIVERED = /^update "batch_deliveries" set "status"/;
const NEW_DELIVERY = /^insert into "batch_deliveries"/;
/** Matches credentials of a client as they are stored. */
const SEALED = /^v1\./;
const ROWS_OF_BLOBS = /^insert into "(?:files|segments|upload_parts)"/;

interface NamedBlob {
  readonly key: string;
  /** Why it would not outlive a power cut at the moment of the commit. */
  readonly unsafe: string | null;
}

/** The server syncs the log after these commits, off the event loop, and goes on with the chunk after that. */
const JOURNAL = /^(?:insert into "segments"|update "chunks" set "closed_at_ms")/;

interface JournalCommit {
  readonly chunk: string;
  readonly isSafe: () => boolean;
}

const commits: Commit[] = [];
const named: NamedBlob[] = [];
const journalCommits: JournalCommit[] = [];
/** The segments that were written before the commit of the one before was safe. */
const hastySegments: string[] = [];
/** The files that were not safe when the manifest, which says that all are there, came beside them. */
const unsafeBesideManifest: string[] = [];
/** The files of each delivery to a folder at the moment of its commit. */
const deliveredFiles: NamedBlob[][] = [];
/** Why the key of stored credentials would be lost, for each commit that stores some. */
const unsafeKeys: (string | null)[] = [];
let halfBlobs: readonly string[] = [];

const isSynced = ({ synchronous, journalMode }: Commit) =>
  synchronous >= FULL && journalMode === "wal";
const isOfJournal = ({ statements }: Commit) => statements.some(({ sql }) => JOURNAL.test(sql));
const chunkOf = (key: string) => /journal\/[^/]+\/\d+/.exec(key)?.[0] ?? "";

/** The last answer comes late, so that the others are in a segment that does not end the chunk. */
const untilLast = (n: number) => (n === 40 ? "[[delay 1500]]" : "fine");

beforeAll(async () => {
  using dir = temporaryFolder("batchd-synced-");
  const recordPath = join(dir.path, "record");
  const dataDir = join(dir.path, "data");
  const share = join(dir.path, "share");
  mkdirSync(share);
  const config = join(dir.path, "batchd.yaml");
  const location = { name: "share", kind: "folder", path: share, access: "write" };
  const deliveries = { allow_private_hosts: ["127.0.0.1"] };
  writeFileSync(config, JSON.stringify({ locations: [location], deliveries }));
  await using upstream = await startUpstream();
  const places = ["--data-dir", dataDir, "--upstream", upstream.url, "--config", config];
  await using server = new BatchdProcess(
    ["serve", "--port", "0", ...places],
    { NODE_OPTIONS: `--import ${PRELOAD}`, DISK_RECORD: recordPath },
    SOURCES,
  );
  await storeOneOfEachKind(server);
  await server.kill("SIGTERM");

  const database = join(dataDir, "batchd.sqlite");
  const disk = new Disk((commit) => {
    commits.push(commit);
    if (isOfJournal(commit) && !isSynced(commit)) {
      const keys = commit.statements.flatMap(({ values }) => JSON.stringify(values));
      journalCommits.push({
        chunk: chunkOf(keys.join()),
        isSafe: disk.changed(`${database}-wal`),
      });
    }
    for (const { sql, values } of commit.statements) {
      if (DELIVERED.test(sql) && values.includes("delivered")) {
        const files = disk.filesBelow(share);
        deliveredFiles.push(
          files.map((path) => ({
            key: relative(share, path),
            unsafe: disk.whyUnsafe(path, share),
          })),
        );
      }
      if (NEW_DELIVERY.test(sql) && values.some((value) => SEALED.test(String(value)))) {
        unsafeKeys.push(disk.whyUnsafe(join(dataDir, "batchd.credentials-key"), dataDir));
      }
      if (!ROWS_OF_BLOBS.test(sql)) continue;
      for (const key of values.map(String).filter((value) => BLOB_KEY.test(value))) {
        named.push({ key, unsafe: disk.whyUnsafe(join(dataDir, "blobs", key), dir.path) });
      }
    }
  });
  for (const step of readSteps(recordPath)) {
    if (step.step === "rename-began" && chunkOf(step.to) !== "") {
      const isHasty = ({ chunk, isSafe }: JournalCommit) => chunk === chunkOf(step.to) && !isSafe();
      if (journalCommits.some(isHasty)) hastySegments.push(step.to);
    }
    if (step.step === "rename-began" && basename(step.to) === "run.json") {
      const others = disk.filesBelow(dirname(step.to)).filter((path) => path !== step.to);
      unsafeBesideManifest.push(...others.filter((path) => disk.whyUnsafe(path, share) !== null));
    }
    if (step.step !== "sql" || step.database === database) disk.take(step);
  }
  halfBlobs = disk.halfBlobs;
});

/**
 * An uploaded file, an upload in parts, segments of a journal, an output file and an error file; and two deliveries to one
 * folder, of which the first makes it and the second adds to it; and a delivery with credentials of a client.
 */
async function storeOneOfEachKind(server: BatchdProcess): Promise<void> {
  const openai = new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "test" });
  // The last answer comes late, so that the others are in a segment that does not end the chunk.
  const answers = (n: number) => (n % 2 === 0 ? "[[status 400]]" : "fine");
  const lines = chatLines(41, (n) => (n === 41 ? "[[delay 1000]]" : answers(n)));
  const input = `${lines.join("\n")}\n`;
  const upload = await openai.uploads.create({
    filename: "input.jsonl",
    purpose: "batch",
    bytes: input.length,
    mime_type: "text/jsonl",
  });
  const data = await toFile(Buffer.from(input), "part");
  const part = await openai.uploads.parts.create(upload.id, { data });
  const { file } = await openai.uploads.complete(upload.id, { part_ids: [part.id] });
  const input_file_id = file?.id ?? "";
  // More bytes than are written at once.
  const large = await toFile(Buffer.alloc(3 * 1024 * 1024, "x"), "large");
  await openai.files.create({ file: large, purpose: "user_data" });
  const batch = await createBatch(openai, input_file_id);
  await server.batchEnded(batch.id);
  for (const format of ["jsonl", "csv"]) {
    const { id } = (await openai.post(`/batches/${batch.id}/deliveries`, {
      body: { location: "share", path: "team/runs", format },
    })) as { id: string };
    await server.loggedLike(new RegExp(`"delivery":"${id}".*"event":"delivery\\.delivered"`));
  }
  const bucket = {
    kind: "s3",
    bucket: "results",
    region: "us-east-1",
    endpoint: "http://127.0.0.1:1",
  };
  await openai.post(`/batches/${batch.id}/deliveries`, {
    body: { ...bucket, access_key_id: "id", secret_access_key: "secret" },
  });
}

test("the record has every kind of blob, and the files of the batch", () => {
  const count = (prefix: string) => named.filter(({ key }) => key.startsWith(prefix)).length;
  expect(count("parts/")).toBe(1);
  expect(count("journal/")).toBeGreaterThan(1);
  // Two uploads, the output and the errors.
  expect(count("files/")).toBe(4);
});

test("every blob that a commit names is whole and safe on the disk before the commit", () => {
  expect(named.filter(({ unsafe }) => unsafe !== null)).toEqual([]);
});

test("no blob has its name before its bytes are safe", () => {
  expect(halfBlobs).toEqual([]);
});

test("every file of a delivery to a folder is safe on the disk before the delivery has ended", () => {
  const namesOf = (files: readonly NamedBlob[]) => files.map(({ key }) => basename(key)).sort();
  expect(deliveredFiles.map(namesOf)).toEqual([
    ["errors.jsonl", "output.jsonl", "run.json"],
    ["errors.csv", "errors.jsonl", "output.csv", "output.jsonl", "run.json"],
  ]);
  expect(deliveredFiles.flat().filter(({ unsafe }) => unsafe !== null)).toEqual([]);
  expect(unsafeBesideManifest).toEqual([]);
});

test("the key of stored credentials is safe on the disk before they are stored", () => {
  expect(unsafeKeys).toEqual([null]);
});

test("the log is synced after every commit of a journal, before the next segment of its chunk", () => {
  expect(journalCommits.length).toBeGreaterThan(1);
  expect(journalCommits.filter(({ isSafe }) => !isSafe())).toEqual([]);
  expect(hastySegments).toEqual([]);
});

test("every other commit is synced but those of leases and intents, and what is done again", () => {
  const unsynced = commits
    .filter((commit) => !isSynced(commit) && !isOfJournal(commit))
    .flatMap(({ statements }) => statements)
    .map(({ sql }) => sql)
    .filter((sql) => !RIGHTS.test(sql) && !DONE_AGAIN.test(sql));
  expect(unsynced).toEqual([]);
});

test("a log whose sync has failed is written again before its next sync, and no line is lost", async () => {
  using dir = temporaryFolder("batchd-failed-sync-");
  const recordPath = join(dir.path, "record");
  await using upstream = await startUpstream();
  const places = ["--data-dir", join(dir.path, "data"), "--upstream", upstream.url];
  await using server = new BatchdProcess(
    ["serve", "--port", "0", ...places],
    { NODE_OPTIONS: `--import ${PRELOAD}`, DISK_RECORD: recordPath, DISK_FAILS_SYNC: "1" },
    SOURCES,
  );
  const openai = new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "test" });
  const file = await toFile(Buffer.from(`${chatLines(40, untilLast).join("\n")}\n`), "input.jsonl");
  const input = await openai.files.create({ file, purpose: "batch" });
  const { id } = await createBatch(openai, input.id);
  await server.batchEnded(id);
  expect((await openai.batches.retrieve(id)).request_counts?.completed).toBe(40);
  await server.kill("SIGTERM");

  const steps = readSteps(recordPath);
  const failedAt = steps.findIndex(({ step }) => step === "sync-failed");
  const failed = steps[failedAt] as Step & { step: "sync-failed" };
  const nextAt = steps.findIndex(
    (each, i) => i > failedAt && each.step === "sync-began" && each.handle === failed.handle,
  );
  expect(nextAt).toBeGreaterThan(failedAt);
  expect(writtenFromStart(steps.slice(failedAt, nextAt))).toBeGreaterThanOrEqual(failed.bytes);
});

/** Returns how many bytes of a file were written again, from its first one on. */
function writtenFromStart(steps: readonly Step[]): number {
  let end = 0;
  for (const each of steps) if (each.step === "write" && each.start === end) end = each.end ?? end;
  return end;
}

describe.skipIf(!canTrace("the tests that count syncs"))("where strace is", () => {
  test("SQLite syncs its log for every batch that is created", async () => {
    using dir = temporaryFolder("batchd-traced-");
    const trace = join(dir.path, "trace");
    await using upstream = await startUpstream();
    await using server = new BatchdProcess(
      ["serve", "--port", "0", "--data-dir", join(dir.path, "data"), "--upstream", upstream.url],
      { SYNCS_TO: trace },
    );
    const baseURL = `${await server.listening()}/v1`;
    const openai = new OpenAI({ baseURL, apiKey: "test" });
    const file = await toFile(Buffer.from(`${chatLines(1).join("\n")}\n`), "input.jsonl");
    const { id: input_file_id } = await openai.files.create({ file, purpose: "batch" });
    const syncCount = () =>
      readFileSync(trace, "utf8")
        .split("\n")
        .filter((line) => /(?:fdatasync|fsync)\(\d+<.*batchd\.sqlite-wal>\)/.test(line)).length;

    for (let n = 0; n < 5; n++) {
      const before = syncCount();
      await createBatch(openai, input_file_id);
      expect(syncCount()).toBeGreaterThan(before);
    }
  });

  test("a log is written again after a sync of SQLite's own that has failed", async () => {
    using dir = temporaryFolder("batchd-faulty-");
    const [recordPath, dataDir] = [join(dir.path, "record"), join(dir.path, "data")];
    const log = join(dataDir, "batchd.sqlite-wal");
    await using server = new BatchdProcess(
      ["serve", "--port", "0", "--data-dir", dataDir],
      {
        NODE_OPTIONS: `--import ${PRELOAD}`,
        DISK_RECORD: recordPath,
        SYNCS_TO: join(dir.path, "trace"),
        FAULTY_FILE: log,
      },
      SOURCES,
    );
    const baseURL = `${await server.listening()}/v1`;
    const openai = new OpenAI({ baseURL, apiKey: "test", maxRetries: 0 });
    const upload = async () => {
      const file = await toFile(Buffer.from(`${chatLines(1).join("\n")}\n`), "input.jsonl");
      return openai.files.create({ file, purpose: "batch" }).then(() => "stored", String);
    };
    let end = "stored";
    for (let n = 0; n < 40 && end === "stored"; n++) end = await upload();

    expect(end).toMatch(/^Error: 50\d/);
    expect(writtenFromStart(readSteps(recordPath))).toBe(statSync(log).size);
    expect(await upload()).toBe("stored");
  });
});
