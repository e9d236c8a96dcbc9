/** A data folder belongs to one process, and to one user. */
import {
  chmodSync,
  cpSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { createBatch } from "./support/batches.ts";
import { runCommand } from "./support/command.ts";
import { FakeClock } from "./support/fake-clock.ts";
import { BatchdProcess } from "./support/process.ts";
import { chatLines, startTestService } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

const argsFor = (dataDir: string) => ["serve", "--port", "0", "--data-dir", dataDir];

const start = async (dataDir: string) => {
  const server = new BatchdProcess(argsFor(dataDir));
  await server.listening();
  return server;
};

const REFUSED = /another batchd is using the data folder/;

/** What another process may do to the lock of a running server. */
const ASSAULTS: Record<string, (lock: string) => void> = {
  removed: (lock) => rmSync(lock),
  replaced: (lock) => {
    rmSync(lock);
    writeFileSync(lock, "");
  },
  "moved away": (lock) => renameSync(lock, `${lock}.old`),
};

for (const [done, assault] of Object.entries(ASSAULTS)) {
  test(`a lock file that is ${done} admits no second server, and none is needed after a kill`, async () => {
    using dir = temporaryFolder("batchd-lock-");
    await using first = await start(dir.path);
    assault(join(dir.path, "batchd.lock"));

    const second = await runCommand(argsFor(dir.path));

    expect(second.code).not.toBe(0);
    expect(second.stderr).toMatch(REFUSED);
    await first.kill();
    await using third = await start(dir.path);
    expect((await third.kill("SIGTERM")).code).toBe(0);
  });
}

test("after an orderly end, or a kill, others may have the database open while a server starts", async () => {
  using dir = temporaryFolder("batchd-lock-");
  await (await start(dir.path)).kill("SIGTERM");
  const reader = new Database(join(dir.path, "batchd.sqlite"), { readonly: true });
  reader.prepare("select count(*) from files").get();
  rmSync(join(dir.path, "batchd.lock"));
  await (await start(dir.path)).kill();
  await (await start(dir.path)).kill();
  reader.close();
});

test("a copy of a data folder can be used at once", async () => {
  using dir = temporaryFolder("batchd-lock-");
  using other = temporaryFolder("batchd-copy-");
  await using _running = await start(dir.path);
  cpSync(dir.path, other.path, { recursive: true });
  await using copy = await start(other.path);
  expect(copy.pid).toBeGreaterThan(0);
});

test("blobs whose database is missing are not taken for garbage", async () => {
  await using service = await startTestService();
  const kept = await service.upload(chatLines(1));
  await service.close();
  for (const name of ["batchd.sqlite", "batchd.sqlite-wal", "batchd.sqlite-shm"]) {
    rmSync(join(service.dataDir, name), { force: true });
  }
  await expect(startTestService({ dataDir: service.dataDir })).rejects.toThrow(
    /batchd\.sqlite is missing, but there are files in/,
  );
  expect(readdirSync(join(service.dataDir, "blobs/files"))).toEqual([kept]);
});

test.each([
  ["missing", () => {}],
  ["an empty mount point", (blobs: string) => mkdirSync(blobs)],
] as const)(
  "a server whose folder of files is %s does not start, and the batch goes on when the files are back",
  async (_, leave) => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { engine: { drain_grace_seconds: 0 } },
    });
    upstream.hold();
    const { id } = await service.submit(chatLines(3));
    await upstream.reached(3);
    await service.close();
    upstream.release();
    const [blobs, away] = [join(service.dataDir, "blobs"), join(service.dataDir, "away")];
    renameSync(blobs, away);
    leave(blobs);
    const restart = () => startTestService({ dataDir: service.dataDir, upstreamUrl: upstream.url });

    await expect(restart()).rejects.toThrow(
      /batchd\.sqlite knows files, but \S+blobs is empty: mount the disk/,
    );

    rmSync(blobs, { recursive: true, force: true });
    renameSync(away, blobs);
    await using again = await restart();
    expect(await again.ended(id)).toMatchObject({
      status: "completed",
      request_counts: { total: 3, completed: 3, failed: 0 },
    });
  },
);

test("a server on a disk that is not mounted does not start, also when all that its batches read is deleted for clients", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { engine: { drain_grace_seconds: 0 } },
  });
  upstream.hold();
  const { id, input_file_id } = await service.submit(chatLines(3));
  await upstream.reached(3);
  await service.openai.files.delete(input_file_id);
  await service.close();
  upstream.release();
  const [blobs, away] = [join(service.dataDir, "blobs"), join(service.dataDir, "away")];
  const restart = () => startTestService({ dataDir: service.dataDir, upstreamUrl: upstream.url });

  renameSync(blobs, away);
  await expect(restart()).rejects.toThrow(/knows files, but \S+blobs is empty: mount the disk/);
  renameSync(away, blobs);
  await using again = await restart();
  expect(await again.ended(id)).toMatchObject({
    status: "completed",
    request_counts: { total: 3, completed: 3, failed: 0 },
  });
});

test("while the folder of files is away, a client is asked to wait, not told that its file is gone", async () => {
  await using service = await startTestService();
  const id = await service.upload(chatLines(1));
  const [blobs, away] = [join(service.dataDir, "blobs"), join(service.dataDir, "away")];
  const download = () => fetch(`${service.url}/v1/files/${id}/content`);
  const upload = () => {
    const body = new FormData();
    body.set("purpose", "batch");
    body.set("file", new File([chatLines(1).join("\n")], "input.jsonl"));
    return fetch(`${service.url}/v1/files`, { method: "POST", body });
  };
  const statuses = async () => [(await download()).status, (await upload()).status];

  renameSync(blobs, away);
  expect(await statuses()).toEqual([503, 503]);
  mkdirSync(blobs);
  expect(await statuses()).toEqual([503, 503]);

  rmSync(blobs, { recursive: true });
  renameSync(away, blobs);
  expect(await statuses()).toEqual([200, 200]);
});

test("a client and the log are told of a file whose content the storage has lost", async () => {
  await using service = await startTestService();
  const id = await service.upload(chatLines(1));
  rmSync(join(service.dataDir, "blobs", "files", id));
  const answer = await fetch(`${service.url}/v1/files/${id}/content`);
  const message = `The content of the file ${id} is missing in the storage of this server.`;
  expect([answer.status, await answer.json()]).toMatchObject([404, { error: { message } }]);
  await service.events.reached("file.lost", { level: "error", file: id });

  const deleted = await service.upload(chatLines(1));
  await service.openai.files.delete(deleted);
  expect((await fetch(`${service.url}/v1/files/${deleted}/content`)).status).toBe(404);
  expect(service.events.count("file.lost")).toBe(1);
});

/** A failure of their own would end the batches before: five are too many. */
const ROUNDS = 7;

/** Stands for a share whose server is gone, and for a folder without rights: nothing in it can be opened. */
function makeUnreachable(folder: string): () => void {
  const away = `${folder}-away`;
  renameSync(folder, away);
  symlinkSync(folder, folder);
  return () => {
    rmSync(folder);
    renameSync(away, folder);
  };
}

test("no batch is given up while the folder of files cannot be reached, and each goes on afterwards", async () => {
  await using upstream = await startUpstream();
  const clock = new FakeClock();
  await using service = await startTestService({ upstreamUrl: upstream.url, clock });
  const { openai, events } = service;
  const paused = await service.submit(chatLines(4));
  await openai.post(`/batches/${paused.id}/pause`);
  await events.reached("batch.started", { batch: paused.id });
  const input = await service.upload(chatLines(3));

  const reach = makeUnreachable(join(service.dataDir, "blobs"));
  await openai.post(`/batches/${paused.id}/resume`);
  const waiting = await createBatch(openai, input);
  await events.reached("chunk.failed", { batch: paused.id });
  const roundCount = () =>
    Math.min(
      events.count("loop.pass_failed", { loop: "intake" }),
      events.count("chunk.failed", { batch: paused.id }),
    );
  const passTime = <T>(look: () => T) => {
    clock.advance(5_000);
    return look();
  };
  await expect.poll(() => passTime(roundCount)).toBeGreaterThanOrEqual(ROUNDS);
  expect((await fetch(`${service.url}/v1/files/${input}/content`)).status).toBe(503);
  reach();
  const countsOf = async ({ id }: { id: string }) => {
    const { status, request_counts: counts } = await openai.batches.retrieve(id);
    return [status, counts!.completed, counts!.failed];
  };
  await expect.poll(() => passTime(() => countsOf(paused))).toEqual(["completed", 4, 0]);
  await expect.poll(() => passTime(() => countsOf(waiting))).toEqual(["completed", 3, 0]);
});

test("a server whose files were all deleted starts", async () => {
  await using service = await startTestService();
  await service.openai.files.delete(await service.upload(chatLines(1)));
  await service.close();
  rmSync(join(service.dataDir, "blobs"), { recursive: true });
  await using again = await startTestService({ dataDir: service.dataDir });
  expect((await again.openai.files.list()).data).toEqual([]);
});

/** Paths that other users can do something with. */
const openToOthers = (folder: string): string[] =>
  [".", ...readdirSync(folder, { recursive: true, encoding: "utf8" })].filter(
    (path) => (statSync(join(folder, path)).mode & 0o077) !== 0,
  );

test("a command that another user runs leaves the folders of the server as they are", async () => {
  using dir = temporaryFolder("batchd-owner-");
  const migrate = () => runCommand(["migrate", "--data-dir", dir.path]);
  expect((await migrate()).code).toBe(0);
  const temporary = join(dir.path, "blobs", ".tmp");
  writeFileSync(join(temporary, "half-written"), "");
  // The mode stands for the owner, whom only root can change: a new folder has neither.
  chmodSync(temporary, 0o750);

  expect((await migrate()).code).toBe(0);

  expect(statSync(temporary).mode & 0o777).toBe(0o750);
  expect(readdirSync(temporary)).toEqual([]);
});

test("no other user can read anything of a data folder, while a batch runs and after it", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  upstream.hold();
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(1);
  expect(openToOthers(service.dataDir)).toEqual([]);
  upstream.release();
  await service.events.reached("journal.flushed");
  expect(openToOthers(service.dataDir)).toEqual([]);
  await service.ended(id);
  expect(openToOthers(service.dataDir)).toEqual([]);
});

test("what an older version left open to others is closed at the next start", async () => {
  await using service = await startTestService();
  await service.upload(chatLines(1));
  await service.close();
  const paths = [".", ...readdirSync(service.dataDir, { recursive: true, encoding: "utf8" })];
  for (const path of paths) {
    const isFolder = statSync(join(service.dataDir, path)).isDirectory();
    chmodSync(join(service.dataDir, path), isFolder ? 0o755 : 0o644);
  }
  await using again = await startTestService({ dataDir: service.dataDir });
  expect(openToOthers(again.dataDir)).toEqual([]);
});

test("a folder that others use too keeps its mode, and what batchd has in it is closed", async () => {
  using dir = temporaryFolder("batchd-shared-");
  chmodSync(dir.path, 0o777);
  writeFileSync(join(dir.path, "notes.txt"), "somebody's");
  chmodSync(join(dir.path, "notes.txt"), 0o644);
  await using service = await startTestService({ dataDir: dir.path });
  await service.upload(chatLines(1));
  expect(openToOthers(dir.path).sort()).toEqual([".", "notes.txt"]);
});
