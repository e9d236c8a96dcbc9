/** Opens the data folder, which holds everything. Only this process and this user may have access to it. */
import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs";
import { chmod } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import type { Blobs } from "./blobs/blobs.ts";
import { openDiskBlobs } from "./blobs/disk.ts";
import { FOLDER_MODE, isOpenToOthers, makeFolder } from "./blobs/file-system.ts";
import type { Clock } from "./clock.ts";
import { lockDataDir } from "./store/sqlite/lock.ts";
import { openSqliteStore } from "./store/sqlite/store.ts";
import type { Store } from "./store/store.ts";

export type OpenedStorage =
  | { readonly ok: true; readonly store: Store; readonly blobs: Blobs }
  | { readonly ok: false; readonly problem: string };

interface Closing {
  add(name: string, close: () => Promise<void>): void;
}

export interface StorageDeps {
  readonly clock: Clock;
  /** Gets what closes the parts. */
  readonly closers: Closing;
}

const DATABASE = "batchd.sqlite";
const BLOBS = "blobs";
/** Matches the names in a folder that only batchd uses. */
const OWN_NAMES = /^(?:batchd\.(?:sqlite(?:-wal|-shm)?|lock(?:-journal)?)|blobs|lost\+found)$/;

/** Opens the stores in `dataDir`, and creates the folder if it is missing. Every open part is added to `closers`. */
export async function openStorage(
  dataDir: string,
  { clock, closers }: StorageDeps,
): Promise<OpenedStorage> {
  const dir = resolve(dataDir);
  const unusable = await makeDataDir(dir);
  if (unusable !== null) return { ok: false, problem: unusable };
  const path = join(dir, DATABASE);
  const blobs = join(dir, BLOBS);
  try {
    // An empty database would turn every blob into garbage.
    if (!existsSync(path) && hasFiles(blobs)) {
      return {
        ok: false,
        problem: `${path} is missing, but there are files in ${blobs}: restore the database, or remove that folder to begin anew`,
      };
    }
    const unlock = lockDataDir(dir, path);
    if (unlock === null) {
      return {
        ok: false,
        problem: `another batchd is using the data folder ${dir}: stop it, or choose another folder with --data-dir`,
      };
    }
    closers.add("lock", async () => unlock());
    const opened = await openSqliteStore({ path, clock });
    if (!opened.ok) return opened;
    closers.add("store", () => opened.store.close());
    return { ok: true, store: opened.store, blobs: await openDiskBlobs(blobs) };
  } catch (cause) {
    return { ok: false, problem: `cannot open the data in ${dir}: ${(cause as Error).message}` };
  }
}

/** Creates the folder. Returns the reason for which it cannot be used, or null. */
async function makeDataDir(dir: string): Promise<string | null> {
  try {
    // A recursive `mkdir` below /proc never returns, so it is only used where it is needed.
    if (!existsSync(dir)) await makeFolder(dir, existsSync(dirname(dir)) ? "last" : "all");
    if (!statSync(dir).isDirectory()) return `the data folder ${dir} is a file`;
    accessSync(dir, constants.W_OK);
    await closeToOthers(dir);
    return null;
  } catch (cause) {
    return `cannot write to the data folder ${dir}: ${(cause as Error).message}`;
  }
}

/**
 * Closes the folder to other users, if batchd owns it: a mounted volume may belong to root. A folder with other
 * contents, such as `/tmp`, stays open. Its blobs and database are closed to others in any case.
 */
async function closeToOthers(dir: string): Promise<void> {
  if (!(await isOpenToOthers(dir)) || !readdirSync(dir).every((name) => OWN_NAMES.test(name))) {
    return;
  }
  await chmod(dir, FOLDER_MODE).catch(() => {});
}

const hasFiles = (blobs: string) =>
  existsSync(blobs) &&
  readdirSync(blobs, { recursive: true, withFileTypes: true }).some((entry) => entry.isFile());
