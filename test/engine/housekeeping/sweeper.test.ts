/** Nothing that live work may still name is swept, however old it is. */
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { BlobIntents } from "../../../src/blobs/blob-intents.ts";
import { openDiskBlobs } from "../../../src/blobs/disk.ts";
import { sweep, sweepOrphans } from "../../../src/engine/housekeeping/sweeper.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
import { Events } from "../../support/events.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { pathsBelow } from "../../support/files-below.ts";
import { blobsAround, GatedBlobs } from "../../support/gated-blobs.ts";
import { lockBeforeResults, startHeldBatch } from "../../support/held-batch.ts";
import { HEARTBEAT_MS, startReplicas } from "../../support/replicas.ts";
import { chatLines, startTestService, type TestService } from "../../support/service.ts";
import { aBatch, aFile, temporaryFolder } from "../../support/store-builders.ts";
import { startUpstream } from "../../support/upstream.ts";

const HOUR_MS = 60 * 60 * 1000;
const RETRY_MS = 1_000;

const blobsBelow = (dataDir: string, folder: string) => pathsBelow(join(dataDir, "blobs", folder));

/** Locks it as a backup or a forgotten shell does. */
function lockDatabase({ dataDir }: TestService): () => void {
  const other = new Database(join(dataDir, "batchd.sqlite"));
  other.exec("begin immediate");
  return () => void other.close();
}

/** Moves time on by so much, and returns once all blobs have been looked through since. */
async function sweepAfter(ms: number, service: TestService, clock: FakeClock): Promise<void> {
  const stray = `part_${clock.nowMs()}`;
  await mkdir(join(service.dataDir, "blobs/parts"), { recursive: true });
  await writeFile(join(service.dataDir, "blobs/parts", stray), "x");
  clock.advance(ms);
  await service.events.reached("orphan.removed", { blob: `parts/${stray}` });
}

test("a batch without failed lines leaves no blob behind that looks like garbage", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  expect((await service.run(chatLines(1))).status).toBe("completed");
  const database = new Database(join(service.dataDir, "batchd.sqlite"), { readonly: true });
  expect(database.prepare("select blob_key from blob_intents").all()).toEqual([]);
  database.close();
});

test("answers whose row has to wait for hours are still there when the database is free again", async () => {
  await using held = await startHeldBatch(3);
  const { clock, upstream, service, id } = held;
  const unlock = lockDatabase(service);
  upstream.release();
  await service.events.reached("line.recorded", { count: 3 });
  await service.events.reached("journal.write_failed");
  const ready = async () => (await fetch(`${service.url}/ready`)).status;
  expect(await ready()).toBe(503);

  await sweepAfter(HOUR_MS, service, clock);
  await sweepAfter(2 * HOUR_MS, service, clock);

  expect(blobsBelow(service.dataDir, `journal/${id}`)).toHaveLength(1);
  // The next attempt must begin after the unlocking: the clock stands still, and wakes only who sleeps by now.
  const failureCount = service.events.count("journal.write_failed");
  clock.advance(RETRY_MS);
  await service.events.reached("journal.write_failed", { count: failureCount + 1 });
  unlock();
  clock.advance(RETRY_MS);
  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  expect(await service.rows(batch.output_file_id)).toHaveLength(3);
  expect(upstream.total).toBe(3);
  expect(await ready()).toBe(200);
});

test("a server that cannot write its journals is not ready, and says so until it can", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, upstreamUrl: upstream.url });
  const ready = async () => (await fetch(`${service.url}/ready`)).status;
  upstream.hold();
  const { id } = await service.submit(chatLines(1));
  await upstream.reached(1);
  const journals = join(service.dataDir, "blobs/journal");
  await writeFile(journals, "in the way");
  upstream.release();
  await service.events.reached("line.recorded");
  clock.advance(500);
  await service.events.reached("journal.write_failed");
  expect(await ready()).toBe(503);
  await rm(journals);
  clock.advance(RETRY_MS);
  await service.ended(id);
  expect(await ready()).toBe(200);
});

test("results that cannot be published for hours are written once, and kept", async () => {
  await using held = await startHeldBatch(3);
  const { clock, service, id, input } = held;
  const unlock = await lockBeforeResults(held);
  const written = blobsBelow(service.dataDir, "files");
  expect(written).toHaveLength(2);
  for (const hours of [1, 2]) await sweepAfter(hours * HOUR_MS, service, clock);
  expect(blobsBelow(service.dataDir, "files")).toEqual(written);

  const failureCount = service.events.count("results.commit_failed");
  clock.advance(RETRY_MS);
  await service.events.reached("results.commit_failed", { count: failureCount + 1 });
  unlock();
  clock.advance(RETRY_MS);
  const batch = await service.ended(id);
  expect([input, batch.output_file_id].toSorted()).toEqual(written);
  expect(await service.rows(batch.output_file_id)).toHaveLength(3);
});

test("results that the database refuses are removed at once, and written again", async () => {
  await using held = await startHeldBatch(3);
  const { clock, upstream, service, id, input } = held;
  using database = refusing(service, "update of completed_at_ms on batches");
  upstream.release();
  await service.events.reached("loop.pass_failed", { loop: "finalize" });
  expect(blobsBelow(service.dataDir, "files")).toEqual([input]);

  database.relent();
  clock.advance(31_000);
  const batch = await service.ended(id);
  expect(batch.status).toBe("completed");
  expect(blobsBelow(service.dataDir, "files")).toEqual([input, batch.output_file_id].toSorted());
});

test("results wait for a disk that takes nothing, and for no count of tries", async () => {
  await using held = await startHeldBatch(3);
  const { clock, upstream, service, id, input } = held;
  const files = join(service.dataDir, "blobs/files");
  await rename(join(files, input), join(service.dataDir, "blobs/input"));
  await rm(files, { recursive: true });
  await writeFile(files, "in the way");
  upstream.release();
  for (let failed = 1; failed <= 12; failed++) {
    await service.events.reached("loop.pass_failed", { loop: "finalize", count: failed });
    await clock.asleep(3, clock.nowMs());
    clock.advance(31_000);
  }
  await rm(files);
  clock.advance(31_000);
  expect((await service.ended(id)).request_counts).toMatchObject({ completed: 3 });
});

test("a batch whose results can never be written ends all the same, and says why", async () => {
  await using held = await startHeldBatch(3);
  const { clock, upstream, service, id } = held;
  using _database = refusing(service, "update of completed_at_ms on batches");
  upstream.release();
  for (let failed = 1; failed <= 10; failed++) {
    await service.events.reached("loop.pass_failed", { loop: "finalize", count: failed });
    await clock.asleep(3, clock.nowMs());
    clock.advance(31_000);
  }
  const batch = await service.ended(id);
  expect(batch).toMatchObject({ status: "failed", output_file_id: null, error_file_id: null });
  expect(batch.errors?.data).toMatchObject([{ code: "internal_error" }]);
});

test("answers that the database refuses fail their chunk, and hold up no other", async () => {
  await using held = await startHeldBatch(2);
  const { clock, upstream, service, id } = held;
  using database = refusing(service, `insert on segments when new.batch_id = '${id}'`);
  upstream.release();
  await service.events.reached("chunk.failed", { batch: id });
  expect((await fetch(`${service.url}/ready`)).status).toBe(200);
  expect((await service.run(chatLines(1))).status).toBe("completed");

  database.relent();
  clock.advance(31_000);
  expect((await service.ended(id)).request_counts).toMatchObject({ completed: 2, failed: 0 });
});

/** A rule of the database that forbids a change, until it relents. */
function refusing({ dataDir }: TestService, change: string) {
  const database = new Database(join(dataDir, "batchd.sqlite"));
  database.exec(`create trigger refuse before ${change}
    begin select raise(abort, 'refused'); end`);
  return {
    relent: () => void database.exec("drop trigger refuse"),
    [Symbol.dispose]: () => void database.close(),
  };
}

/** Two processes on the same data, of which the second sweeps. */
async function twoProcesses() {
  const folder = temporaryFolder("batchd-sweep-");
  const clock = new FakeClock();
  const opened = await openSqliteStore({ path: join(folder.path, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const blobs = await openDiskBlobs(join(folder.path, "blobs"));
  const events = new Events();
  const deps = { store, blobs, clock, log: events.log };
  const writer = new BlobIntents(deps);
  let lastEvent: string | null = null;
  const isDraining = () => lastEvent !== null && events.count(lastEvent) > 0;
  const sweeper = { ...deps, intents: new BlobIntents(deps), isDraining };
  const sweepAll = async () => {
    await sweep(sweeper, {});
    await sweepOrphans(sweeper);
  };
  const keys = async () => {
    const found: string[] = [];
    for await (const { key } of blobs.list("")) found.push(key);
    return found;
  };
  return {
    store,
    clock,
    blobs,
    writer,
    sweeper,
    sweepAll,
    keys,
    /** Has the second process close as soon as it has logged this event. */
    drainAfter: (event: string) => {
      lastEvent = event;
    },
    [Symbol.asyncDispose]: async () => {
      await store.close();
      folder[Symbol.dispose]();
    },
  };
}

for (const prefix of ["files", "parts"]) {
  test(`a blob of ${prefix} is kept for as long as its writer renews, without end`, async () => {
    await using two = await twoProcesses();
    const file = aFile({ blobKey: `${prefix}/slow` });
    await two.writer.during([file.blobKey], async () => {
      await two.blobs.putBytes(file.blobKey, [Buffer.from("x")]);
      for (let hour = 0; hour < 30; hour++) {
        two.clock.advance(4 * 60 * 1000);
        await two.writer.renew();
        await two.sweepAll();
      }
      expect(await two.store.insertFileIfDeclared(file)).toBe(true);
    });
    two.clock.advance(100 * HOUR_MS);
    await two.sweepAll();
    expect(await two.keys()).toEqual([file.blobKey]);
  });

  test(`a writer of ${prefix} that was taken for gone can publish nothing, and leaves nothing`, async () => {
    await using two = await twoProcesses();
    const file = aFile({ blobKey: `${prefix}/paused` });
    const work = two.writer.during([file.blobKey], async () => {
      await two.blobs.putBytes(file.blobKey, [Buffer.from("x")]);
      two.clock.advance(6 * 60 * 1000);
      await two.sweepAll();
      expect(await two.keys()).toEqual([]);
      if (!(await two.store.insertFileIfDeclared(file))) throw new Error("given up");
    });
    await expect(work).rejects.toThrow("given up");
    expect(await two.store.findFile({ project: file.project, id: file.id })).toBeNull();
  });
}

test("a long look at deleted files that are still read is not repeated at each end of a batch, but later", async () => {
  await using two = await twoProcesses();
  const { store, sweeper, clock } = two;
  const file = aFile();
  await two.writer.during([file.blobKey], () => store.insertFileIfDeclared(file));
  await store.deleteFileIfPresent({ project: file.project, id: file.id });
  let looks = 0;
  const listUnusedFiles: typeof store.listUnusedFiles = async () => {
    looks++;
    clock.advance(500);
    return [];
  };
  const slow = { ...sweeper, store: Object.assign(Object.create(store), { listUnusedFiles }) };
  const cursors = {};
  for (let n = 0; n < 3; n++) await sweep(slow, cursors);
  expect(looks).toBe(1);
  clock.advance(20 * 500);
  await sweep(sweeper, cursors);
  expect(await store.listUnusedFiles(1)).toEqual([]);
});

test("a commit that failed in the eyes of its writer, but was made, keeps its blob", async () => {
  await using two = await twoProcesses();
  const file = aFile();
  const work = two.writer.during([file.blobKey], async () => {
    await two.blobs.putBytes(file.blobKey, [Buffer.from("x")]);
    await two.store.insertFileIfDeclared(file);
    throw new Error("the connection broke before the answer came");
  });
  await expect(work).rejects.toThrow("the connection broke");
  await two.sweepAll();
  expect(await two.keys()).toEqual([file.blobKey]);
});

test("a failed upload leaves neither a blob nor an intent", async () => {
  await using service = await startTestService();
  const body =
    "--b\r\ncontent-disposition: form-data; name=file; filename=a.jsonl\r\n\r\nnot json\r\n--b--";
  const headers = { "content-type": "multipart/form-data; boundary=b" };
  await fetch(`${service.url}/v1/files`, { method: "POST", headers, body });
  expect(blobsBelow(service.dataDir, "files")).toEqual([]);
  const database = new Database(join(service.dataDir, "batchd.sqlite"), { readonly: true });
  expect(database.prepare("select count(*) from blob_intents").pluck().get()).toBe(0);
  database.close();
});

test("a file that takes longer to store than its intent lasts is no garbage to another replica", async () => {
  await using replicas = await startReplicas();
  const { a, b, dataDir } = replicas;
  const database = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
  const expiry = database.prepare("select min(expires_at_ms) from blob_intents").pluck();
  a.blobs.puts.close("files/");
  const uploading = a.service.upload(chatLines(3));
  await a.blobs.puts.reached();
  const ttlMs = Number(expiry.get()) - a.clock.nowMs();
  for (let passedMs = 0; passedMs < 2 * ttlMs; passedMs += HEARTBEAT_MS) {
    a.clock.advance(HEARTBEAT_MS);
    while (Number(expiry.get()) < a.clock.nowMs() + ttlMs) await setImmediate();
    b.clock.advance(HEARTBEAT_MS);
  }
  database.close();
  a.blobs.puts.open();

  const id = await uploading;
  await sweepAfter(HOUR_MS, b.service, b.clock);
  expect(blobsBelow(dataDir, "files")).toEqual([id]);
  expect(await b.service.text(id)).toContain("line-3");
});

test("an upload that a machine has slept through, beyond its intent, is no garbage to its own server", async () => {
  const clock = new FakeClock();
  const wrapped = blobsAround(GatedBlobs);
  await using service = await startTestService({
    clock,
    openStorage: wrapped.open,
  });
  const others = [await service.upload(chatLines(1)), await service.upload(chatLines(1))];
  wrapped.blobs().puts.close("files/");
  const uploading = service.upload(chatLines(3));
  await wrapped.blobs().puts.reached();
  clock.setBy(HOUR_MS);
  // Each deletion begins a sweep, so at the end of the second one a whole sweep is over.
  for (const file of others) {
    await service.openai.files.delete(file);
    await service.events.reached("file.removed", { file });
  }
  wrapped.blobs().puts.open();
  expect(await service.text(await uploading)).toContain("line-3");
});

test("the removal of a batch does not wait for the one before it", async () => {
  await using two = await twoProcesses();
  const { store, sweeper } = two;
  for (let n = 0; n < 3; n++) {
    const batch = aBatch();
    await store.insertBatch(batch);
    await store.deleteBatchIfPresent(batch, { withInput: false });
  }
  const blobs = new GatedBlobs(two.blobs);
  blobs.deletes.close("journal/");
  const swept = sweep({ ...sweeper, blobs }, {});
  await blobs.deletes.reached(3);
  blobs.deletes.open();
  await swept;
  expect(await store.listDeletedBatches(1)).toEqual([]);
});

test("a server that closes while it looks for garbage leaves the rest to its next start", async () => {
  await using two = await twoProcesses();
  // It looks at 500 blobs at a time.
  for (let n = 0; n < 600; n++) await two.blobs.putBytes(`parts/part_${n}`, [Buffer.from("x")]);
  two.drainAfter("orphan.removed");
  await two.sweepAll();
  expect(await two.keys()).toHaveLength(100);
});
