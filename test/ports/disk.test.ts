import { existsSync, mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { afterAll, assert, describe, expect, test, vi } from "vitest";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { systemClock } from "../../src/clock.ts";
import { parseConfig } from "../../src/config/config.ts";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { openCount } from "../support/open-files.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { describeBlobs } from "./blobs.ts";

const roots: string[] = [];
const newRoot = () => {
  const root = mkdtempSync(join(tmpdir(), "batchd-blobs-"));
  roots.push(root);
  return root;
};
afterAll(async () => {
  for (const root of roots) rmSync(root, { recursive: true, force: true });
});

describeBlobs("disk", () => openDiskBlobs(newRoot()));

const entriesOf = (root: string) => readdirSync(root, { recursive: true, encoding: "utf8" }).sort();

describe("disk blobs", () => {
  test("remove at opening what a crash left half-written, and keep what was stored", async () => {
    const root = newRoot();
    await (await openDiskBlobs(root)).putBytes("files/a", [Buffer.from("kept")]);
    writeFileSync(join(root, ".tmp", "half"), "half");
    const blobs = await openDiskBlobs(root);
    expect(entriesOf(root)).toEqual([".tmp", "files", "files/a"]);
    expect((await buffer(blobs.read("files/a"))).toString()).toBe("kept");
  });

  test("sync two large blobs at a time, so that threads are left for what else needs a file", async () => {
    const root = newRoot();
    const blobs = await openDiskBlobs(root);
    await using any = await open(root, "r");
    const files: FileHandle = Object.getPrototypeOf(any);
    const { sync } = files;
    const released = Promise.withResolvers<void>();
    let syncCount = 0;
    const spy = vi.spyOn(files, "sync").mockImplementation(async function (this: FileHandle) {
      if ((await this.stat()).size === large.length) {
        syncCount++;
        await released.promise;
      }
      return sync.call(this);
    });
    const large = Buffer.alloc(16 * 1024 * 1024);
    const puts = Array.from({ length: 4 }, (_, n) =>
      blobs.put(
        `files/large-${n}`,
        (async function* () {
          yield large;
        })(),
      ),
    );
    const written = () => readdirSync(join(root, ".tmp")).length;
    await expect.poll(() => [written(), syncCount]).toEqual([4, 2]);
    await blobs.putBytes("files/small", [Buffer.from("small")]);
    expect(syncCount).toBe(2);
    released.resolve();
    await Promise.all(puts);
    expect(syncCount).toBe(4);
    spy.mockRestore();
  });

  test("in a shared folder leave alone what another process writes, and remove what no row can name", async () => {
    const root = newRoot();
    const first = await openDiskBlobs(root, { isShared: true });
    const entered = Promise.withResolvers<void>();
    const rest = Promise.withResolvers<Uint8Array>();
    const put = first.put(
      "journal/b1/1-1-0",
      (async function* () {
        yield Buffer.from("half");
        entered.resolve();
        yield await rest.promise;
      })(),
    );
    await entered.promise;
    const dead = first.put(
      "files/dead",
      (async function* () {
        yield Buffer.from("half");
        await new Promise(() => {});
      })(),
    );
    await expect.poll(() => readdirSync(join(root, ".tmp"))).toHaveLength(2);
    const second = await openDiskBlobs(root, { isShared: true });
    const asked: string[] = [];
    await second.removeUnfinished(async (keys) => {
      asked.push(...keys);
      return ["files/dead"];
    });
    expect(asked.sort()).toEqual(["files/dead", "journal/b1/1-1-0"]);
    expect(readdirSync(join(root, ".tmp"))).toHaveLength(1);
    rest.resolve(Buffer.from(" and half"));
    await put;
    expect((await buffer(second.read("journal/b1/1-1-0"))).toString()).toBe("half and half");
    void dead;
  });

  test("leave no empty folders behind", async () => {
    const root = newRoot();
    const blobs = await openDiskBlobs(root);
    for (const key of ["a/b/c/1", "a/b/d/1", "x/y/1"]) await blobs.putBytes(key, []);
    await blobs.delete("a/b/c/1");
    expect(entriesOf(root)).toEqual([".tmp", "a", "a/b", "a/b/d", "a/b/d/1", "x", "x/y", "x/y/1"]);
    await blobs.deleteAll("a/b/");
    await blobs.delete("x/y/1");
    expect(entriesOf(root)).toEqual([".tmp"]);
  });

  test("hold no open file for a stream that is not read, or not to its end", async () => {
    const blobs = await openDiskBlobs(newRoot());
    await blobs.putBytes("large", [Buffer.alloc(8_000_000)]);
    const unread = blobs.read("large");
    expect(openCount("large")).toBe(0);
    let duringCount = 0;
    for await (const _chunk of blobs.read("large")) {
      duringCount = openCount("large");
      break;
    }
    unread.destroy();
    expect(duringCount).toBe(1);
    await expect.poll(() => openCount("large")).toBe(0);
  });

  test("fail their ping when they cannot be written", async () => {
    const root = newRoot();
    const blobs = await openDiskBlobs(root);
    rmSync(join(root, ".tmp"), { recursive: true });
    await expect(blobs.ping()).rejects.toThrow("ENOENT");
  });
});

/** Every folder and file that is synced, by the end of its sync; `hold` keeps the first of one folder from ending. */
async function watchSyncs(holdPath: string) {
  const probe = await open(tmpdir(), "r");
  const handle = Object.getPrototypeOf(probe) as { sync(this: FileHandle): Promise<void> };
  await probe.close();
  const original = handle.sync;
  const synced: string[] = [];
  const { promise: held, resolve: release } = Promise.withResolvers<void>();
  const { promise: reached, resolve: reach } = Promise.withResolvers<void>();
  let isFirst = true;
  handle.sync = async function (this: FileHandle) {
    const path = readlinkSync(`/proc/self/fd/${this.fd}`);
    await original.call(this);
    if (path === holdPath && isFirst) {
      isFirst = false;
      reach();
      await held;
    }
    synced.push(path);
  };
  const restore = () => {
    handle.sync = original;
  };
  return { synced, reached, release, [Symbol.dispose]: restore };
}

describe.skipIf(!existsSync("/proc/self/fd"))("the names of folders", () => {
  test("are durable before a put is acknowledged that did not make its folder itself", async () => {
    const root = newRoot();
    const blobs = await openDiskBlobs(root);
    const journal = join(root, "journal");
    using syncs = await watchSyncs(journal);
    const first = blobs.putBytes("journal/batch/1", []);
    await syncs.reached;
    await blobs.putBytes("journal/batch/2", []);
    expect(syncs.synced).toEqual(expect.arrayContaining([journal, root]));
    syncs.release();
    await first;
  });

  test("are durable when the data folder was made, the one above it included", async () => {
    const above = newRoot();
    using syncs = await watchSyncs("");
    const closers = { add: (_name: string, close: () => Promise<void>) => closing.unshift(close) };
    const closing: (() => Promise<void>)[] = [];
    const parsed = parseConfig({ data_dir: join(above, "new/data") });
    assert(parsed.ok);
    const opened = await openStorage(parsed.config, { clock: systemClock, closers });
    expect(opened.ok).toBe(true);
    for (const close of closing) await close();
    const made = [above, join(above, "new"), join(above, "new/data")];
    expect(syncs.synced).toEqual(expect.arrayContaining(made));
  });
});

const SMALL_BYTES = 1024 * 1024;

const smallDisk = join(newRoot(), "small");
const disk = forAllTests(mountSmallDisk(smallDisk, SMALL_BYTES));

describe.skipIf(disk === null)("disk blobs on a full disk", () => {
  test("store nothing, say so, and go on once there is room", async () => {
    const blobs = await openDiskBlobs(join(smallDisk, "blobs"));
    async function* tooMuch() {
      for (let i = 0; i < 40; i++) yield Buffer.alloc(64 * 1024);
    }
    await expect(blobs.put("stream", tooMuch())).rejects.toMatchObject({ code: "ENOSPC" });
    const buffers = [Buffer.alloc(SMALL_BYTES), Buffer.alloc(SMALL_BYTES)];
    await expect(blobs.putBytes("buffers", buffers)).rejects.toMatchObject({ code: "ENOSPC" });
    expect(entriesOf(join(smallDisk, "blobs"))).toEqual([".tmp"]);
    await blobs.putBytes("fits", [Buffer.alloc(SMALL_BYTES / 2)]);
    expect(entriesOf(join(smallDisk, "blobs"))).toEqual([".tmp", "fits"]);
  });
});
