import { spawnSync } from "node:child_process";
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { chmod } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { buffer } from "node:stream/consumers";
import { afterAll, describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { FolderLocation } from "../../src/locations/folder/folder.ts";
import { filesBelow } from "../support/files-below.ts";
import { aCall, aFile, aParcel, Progress, pathOf, patternOf } from "../support/parcels.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { describeLocation, type TestedLocation } from "./suite.ts";

const roots: string[] = [];
function newRoot(above = tmpdir()): string {
  const root = mkdtempSync(join(above, "batchd-location-"));
  roots.push(root);
  return root;
}
afterAll(() => {
  for (const root of roots) rmSync(root, { recursive: true, force: true });
});

const locationAt = (path: string) =>
  new FolderLocation({ name: "share", path }, { clock: systemClock });

async function open(above?: string): Promise<TestedLocation> {
  const root = newRoot(above);
  return {
    location: locationAt(root),
    put: async (path, bytes) => {
      mkdirSync(dirname(join(root, path)), { recursive: true });
      writeFileSync(join(root, path), bytes);
    },
    published: async (folder) => filesBelow(join(root, folder)),
    largeBytes: 20_000_004,
    outermost: "",
  };
}

describeLocation("folder", open);

const OTHER_FILE_SYSTEM = "/dev/shm";
if (existsSync(OTHER_FILE_SYSTEM)) {
  describeLocation("folder on another file system", () => open(OTHER_FILE_SYSTEM));
}

/** The paths that this process has open in a folder. Linux only. */
const openBelow = (root: string) =>
  readdirSync("/proc/self/fd")
    .map((descriptor) => `/proc/self/fd/${descriptor}`)
    .filter((link) => existsSync(link))
    .map((link) => readlinkSync(link))
    .filter((path) => path.startsWith(root));

const names = (folder: string) => readdirSync(folder).sort();

describe("a folder location: symbolic links", () => {
  test("within the folder are followed, and no other one", async () => {
    const root = newRoot();
    const outside = newRoot();
    writeFileSync(join(outside, "secret"), "secret");
    mkdirSync(join(root, "2026"));
    writeFileSync(join(root, "2026", "in.jsonl"), "lines");
    symlinkSync("2026", join(root, "latest"));
    symlinkSync(outside, join(root, "out"));
    symlinkSync(join(outside, "secret"), join(root, "secret"));
    symlinkSync("/proc/self/environ", join(root, "environ"));
    symlinkSync("loop", join(root, "loop"));
    const location = locationAt(root);
    await using file = await location.open(pathOf("latest/in.jsonl"), aCall());
    expect((await buffer(file.content)).toString()).toBe("lines");
    for (const path of ["out/secret", "secret", "environ", "loop"]) {
      const opened = location.open(pathOf(path), aCall());
      await expect(opened, path).rejects.toMatchObject({ failure: "refused" });
    }
  });

  test("that take the place of a folder while a file is opened lead nowhere", async () => {
    const root = newRoot();
    const outside = newRoot();
    writeFileSync(join(outside, "file"), "secret");
    mkdirSync(join(root, "real"));
    writeFileSync(join(root, "real", "file"), "open");
    symlinkSync(outside, join(root, "link"));
    const location = locationAt(root);
    const { promise: enough, resolve: stop } = Promise.withResolvers<void>();
    let isRunning = true;
    // The names are exchanged between any two steps of the reads.
    const swap = () => {
      renameSync(join(root, "real"), join(root, "aside"));
      renameSync(join(root, "link"), join(root, "real"));
      setImmediate(() => {
        renameSync(join(root, "real"), join(root, "link"));
        renameSync(join(root, "aside"), join(root, "real"));
        if (isRunning) setImmediate(swap);
        else stop();
      });
    };
    swap();
    const read = new Set<string>();
    for (let i = 0; i < 400; i++) {
      try {
        await using file = await location.open(pathOf("real/file"), aCall());
        read.add((await buffer(file.content)).toString());
      } catch (error) {
        expect(error).toMatchObject({ name: "LocationError" });
      }
    }
    isRunning = false;
    await enough;
    expect([...read].filter((text) => text !== "open")).toEqual([]);
  });

  test("receive no results", async () => {
    const root = newRoot();
    const outside = newRoot();
    symlinkSync(outside, join(root, "team"));
    const parcel = aParcel({ folder: pathOf("team/a") });
    const delivered = locationAt(root).deliver(parcel, aCall());
    await expect(delivered).rejects.toMatchObject({ failure: "refused" });
    symlinkSync(outside, join(root, parcel.batchId));
    const atRoot = locationAt(root).deliver({ ...parcel, folder: null }, aCall());
    await expect(atRoot).rejects.toMatchObject({ failure: "refused" });
    expect(names(outside)).toEqual([]);
    expect(names(root)).toEqual([parcel.batchId, "team"].sort());
  });

  test("in the place of a delivered file are replaced by the file", async () => {
    const root = newRoot();
    const outside = newRoot();
    writeFileSync(join(outside, "target"), "untouched");
    const parcel = aParcel();
    mkdirSync(join(root, parcel.batchId));
    symlinkSync(join(outside, "target"), join(root, parcel.batchId, "output.jsonl"));
    await locationAt(root).deliver(parcel, aCall());
    expect(readFileSync(join(outside, "target"), "utf8")).toBe("untouched");
    expect(filesBelow(join(root, parcel.batchId)).size).toBe(3);
  });
});

describe("a folder location", () => {
  test("reads nothing but regular files, and does not wait for the writer of a pipe", async () => {
    const root = newRoot();
    expect(spawnSync("mkfifo", [join(root, "pipe")]).status).toBe(0);
    const opened = locationAt(root).open(pathOf("pipe"), aCall());
    await expect(opened).rejects.toMatchObject({ failure: "refused" });
  });

  test.each([
    ["grows", (path: string) => appendFileSync(path, "a line more\n")],
    ["gets other bytes", (path: string) => writeFileSync(path, patternOf(999_999), { flag: "r+" })],
  ] as const)("does not pass a file off as whole that %s while it is read", async (_, change) => {
    const root = newRoot();
    const path = join(root, "in.jsonl");
    writeFileSync(path, patternOf(2_000_000));
    utimesSync(path, new Date(0), new Date(0));
    await using file = await locationAt(root).open(pathOf("in.jsonl"), aCall());
    const read = async () => {
      let isFirst = true;
      for await (const _ of file.content) {
        if (isFirst) change(path);
        isFirst = false;
      }
    };
    await expect(read()).rejects.toMatchObject({
      failure: "unavailable",
      message: expect.stringContaining("changed while it was read"),
    });
  });

  test("closes every file and folder that it has opened", async () => {
    const root = newRoot();
    const location = locationAt(root);
    mkdirSync(join(root, "dir"));
    writeFileSync(join(root, "dir", "file"), patternOf(100_000));
    for (let i = 0; i < 20; i++) {
      await location.deliver(aParcel({ folder: pathOf("a/b") }), aCall());
      await using file = await location.open(pathOf("dir/file"), aCall());
      for await (const _ of file.content) break;
      await expect(location.open(pathOf("dir/none"), aCall())).rejects.toThrow();
    }
    expect(openBelow(root)).toEqual([]);
  });

  test("removes what killed deliveries of the batch have left, and nothing else", async () => {
    const root = newRoot();
    const parcel = aParcel();
    const { batchId, deliveryId } = parcel;
    const beginning = `.batchd-${batchId}-`;
    const dayOld = new Date(Date.now() - 25 * 60 * 60 * 1000);
    const leave = (name: string, changedAt = new Date()) => {
      mkdirSync(join(root, name));
      writeFileSync(join(root, name, "output.jsonl"), "half");
      utimesSync(join(root, name), changedAt, changedAt);
    };
    leave(`${beginning}${deliveryId}-0123`);
    leave(`${beginning}delivery_forgotten-4567`, dayOld);
    leave(`${beginning}delivery_live-89ab`);
    leave(".batchd-batch_other-delivery_forgotten-cdef", dayOld);
    await locationAt(root).deliver(parcel, aCall());
    expect(names(root)).toEqual(
      [
        ".batchd-batch_other-delivery_forgotten-cdef",
        `${beginning}delivery_live-89ab`,
        batchId,
      ].sort(),
    );
  });

  test("takes results although its storage has put a folder into what a killed delivery has left", async () => {
    const root = newRoot();
    const parcel = aParcel();
    const left = join(root, `.batchd-${parcel.batchId}-${parcel.deliveryId}-0123`);
    mkdirSync(join(left, "@eaDir"), { recursive: true });
    writeFileSync(join(left, "output.jsonl"), "half");
    await locationAt(root).deliver(parcel, aCall());
    expect(names(join(root, parcel.batchId))).toContain("run.json");
    expect(names(`${left}-left`)).toEqual(["@eaDir"]);
  });

  test("shows a parcel whole or not at all, also where a former holder of the delivery takes it for left and removes it", async () => {
    const root = newRoot();
    const progress = new Progress();
    let removed: Promise<void> = Promise.resolve();
    const manifest = aFile("run.json", "{}");
    const files = [
      ...Array.from({ length: 200 }, (_, i) => aFile(`output-${i}.jsonl`, "{}\n")),
      {
        ...manifest,
        open: (startByte?: number) => {
          removed = locationAt(root).discard(progress.saved ?? "");
          return manifest.open(startByte);
        },
      },
    ];
    const parcel = aParcel({ files });
    const isDelivered = await locationAt(root)
      .deliver(parcel, aCall({ progress }))
      .then(
        () => true,
        (error: unknown) => {
          // Then it is tried again.
          expect(error).toMatchObject({ failure: "unavailable" });
          return false;
        },
      );
    await removed;
    expect(names(root)).toEqual(isDelivered ? [parcel.batchId] : []);
    if (isDelivered) expect(names(join(root, parcel.batchId))).toHaveLength(files.length);
  });

  test("names the file in whose place a folder is", async () => {
    const root = newRoot();
    const parcel = aParcel();
    mkdirSync(join(root, parcel.batchId, "output.jsonl"), { recursive: true });
    await expect(locationAt(root).deliver(parcel, aCall())).rejects.toMatchObject({
      failure: "refused",
      message: `${parcel.batchId}/output.jsonl is a folder`,
    });
    expect(names(root)).toEqual([parcel.batchId]);
  });

  test("that is not there is unavailable, and is not made", async () => {
    const root = join(newRoot(), "share");
    const location = locationAt(root);
    const unavailable = { failure: "unavailable", message: "the folder of share is not there" };
    await expect(location.deliver(aParcel(), aCall())).rejects.toMatchObject(unavailable);
    await expect(location.open(pathOf("a"), aCall())).rejects.toMatchObject(unavailable);
    expect(existsSync(root)).toBe(false);
  });

  test("leaves results readable to those whom the umask lets read", async () => {
    const root = newRoot();
    const parcel = aParcel();
    await chmod(root, 0o755);
    await locationAt(root).deliver(parcel, aCall());
    const { stdout } = spawnSync("stat", ["-c", "%a", join(root, parcel.batchId, "run.json")]);
    const umask = process.umask();
    expect(stdout.toString().trim()).toBe((0o666 & ~umask).toString(8));
  });

  test("that is full keeps nothing of a parcel that does not fit, and takes it when there is room", async ({
    skip,
  }) => {
    const root = newRoot();
    using disk = mountSmallDisk(root, 4 * 1024 * 1024);
    if (disk === null) return skip("this process may not mount a file system");
    writeFileSync(join(root, "ballast"), patternOf(2_000_000));
    const files = [aFile("output.jsonl", patternOf(3_000_000)), aFile("run.json", "{}")];
    const parcel = aParcel({ files });
    const refused = locationAt(root).deliver(parcel, aCall());
    await expect(refused).rejects.toMatchObject({
      failure: "unavailable",
      message: expect.stringContaining("does not fit on the disk"),
    });
    expect(names(root)).toEqual(["ballast"]);
    rmSync(join(root, "ballast"));
    await locationAt(root).deliver(parcel, aCall());
    expect(names(root)).toEqual([parcel.batchId]);
  });
});
