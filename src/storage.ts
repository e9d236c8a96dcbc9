/**
 * Opens the data folder, to which only this process and this user may have access, and the bucket if the configuration
 * names one.
 */
import {
  accessSync,
  constants,
  existsSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { chmod } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { type Blobs, BlobsUnavailable } from "./blobs/blobs.ts";
import { openDiskBlobs } from "./blobs/disk.ts";
import { FILE_MODE, FOLDER_MODE, isOpenToOthers, makeFolder } from "./blobs/file-system.ts";
import type { S3Options } from "./blobs/s3-client.ts";
import type { Clock } from "./clock.ts";
import type { Config } from "./config/schema.ts";
import type { StorageConfig } from "./config/storage.ts";
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
/** The file that names the place of the blobs. Without it a changed configuration would make every blob look lost. */
const PLACE = "batchd.storage";
/** Matches the names in a folder that only batchd uses. */
const OWN_NAMES =
  /^(?:batchd\.(?:sqlite(?:-wal|-shm)?|lock(?:-journal)?|storage)|blobs|lost\+found)$/;

/** The part of the configuration that names the places. */
type Places = Pick<Config, "data_dir" | "storage">;

/** Opens the stores. Creates a missing folder, but no bucket. Every open part is added to `closers`. */
export async function openStorage(places: Places, deps: StorageDeps): Promise<OpenedStorage> {
  const dir = resolve(places.data_dir);
  const unusable = await makeDataDir(dir);
  if (unusable !== null) return { ok: false, problem: unusable };
  try {
    return await open(dir, places, deps);
  } catch (cause) {
    return { ok: false, problem: `cannot open the data in ${dir}: ${(cause as Error).message}` };
  }
}

async function open(dir: string, places: Places, deps: StorageDeps): Promise<OpenedStorage> {
  const { clock, closers } = deps;
  const path = join(dir, DATABASE);
  const hasDatabase = existsSync(path);
  const misplaced = misplacedBlobs(dir, places.storage, hasDatabase);
  if (misplaced !== null) return { ok: false, problem: misplaced };
  const unlock = lockDataDir(dir, path);
  if (unlock === null) {
    return {
      ok: false,
      problem: `another batchd is using the data folder ${dir}: stop it, or choose another folder with --data-dir`,
    };
  }
  closers.add("lock", async () => unlock());
  const opened = await openBlobs(dir, places.storage, { hasDatabase, clock, closers });
  if (!opened.ok) return opened;
  const database = await openSqliteStore({ path, clock });
  if (!database.ok) return database;
  closers.add("store", () => database.store.close());
  const place = placeOf(places.storage);
  // A power cut may empty a file that is written anew, so it is written only when it has to change.
  if (readPlace(dir) !== place) writeFileSync(join(dir, PLACE), place, { mode: FILE_MODE });
  return { ok: true, store: database.store, blobs: opened.blobs };
}

/** Returns the text of the file {@link PLACE}. */
const placeOf = (storage: StorageConfig) =>
  storage.type === "s3" ? `s3://${storage.bucket}/${storage.prefix}` : BLOBS;

/** Returns what the file {@link PLACE} says, which is missing as long as the blobs are in the folder. */
const readPlace = (dir: string) =>
  existsSync(join(dir, PLACE)) ? readFileSync(join(dir, PLACE), "utf8").trim() : BLOBS;

/** Returns the reason for which database and blobs do not belong together, or null. Together they would lose all data. */
function misplacedBlobs(dir: string, storage: StorageConfig, hasDatabase: boolean): string | null {
  const blobs = join(dir, BLOBS);
  if (!hasDatabase) {
    return hasFiles(blobs)
      ? `${join(dir, DATABASE)} is missing, but there are files in ${blobs}: restore the database, or remove that folder to begin anew`
      : null;
  }
  const before = readPlace(dir);
  const now = placeOf(storage);
  if (before === now || (before === BLOBS && !hasFiles(blobs))) return null;
  return `the files of this database are in ${before}, and storage now names ${now}: change it back, or copy all files and then remove ${join(dir, PLACE)}`;
}

type OpenedBlobs =
  | { readonly ok: true; readonly blobs: Blobs }
  | { readonly ok: false; readonly problem: string };

interface BlobsOpening extends StorageDeps {
  readonly hasDatabase: boolean;
}

async function openBlobs(
  dir: string,
  storage: StorageConfig,
  opening: BlobsOpening,
): Promise<OpenedBlobs> {
  if (storage.type === "s3") return openBucket(dir, storage, opening);
  return { ok: true, blobs: await openDiskBlobs(join(dir, BLOBS)) };
}

/** Loads the SDK only if there is a bucket, because of its memory. */
async function openBucket(
  dir: string,
  storage: StorageConfig,
  { hasDatabase, clock, closers }: BlobsOpening,
): Promise<OpenedBlobs> {
  const { S3Blobs } = await import("./blobs/s3.ts");
  const blobs = new S3Blobs(s3Options(storage), clock);
  closers.add("bucket", () => blobs.close());
  const place = placeOf(storage);
  try {
    if ((await blobs.isEmpty()) || hasDatabase) return { ok: true, blobs };
  } catch (cause) {
    // A server with a database waits for a bucket that does not answer. A new one must first see that the bucket is empty.
    if (hasDatabase && cause instanceof BlobsUnavailable && !cause.isRefusal) {
      return { ok: true, blobs };
    }
    return { ok: false, problem: `cannot use ${place}: ${(cause as Error).message}` };
  }
  return {
    ok: false,
    problem: `${join(dir, DATABASE)} is missing, but there are files in ${place}: restore the database, or choose another storage.prefix to begin anew`,
  };
}

function s3Options(storage: StorageConfig): S3Options {
  const { bucket = "", prefix, region, endpoint, force_path_style: forcePathStyle } = storage;
  const { access_key_id: accessKeyId, secret_access_key: secretAccessKey } = storage;
  const { server_side_encryption: algorithm, kms_key_id: kmsKeyId } = storage;
  const hasKey = accessKeyId !== undefined && secretAccessKey !== undefined;
  return {
    ...{ bucket, prefix, region, endpoint, forcePathStyle },
    credentials: hasKey
      ? { accessKeyId, secretAccessKey, sessionToken: storage.session_token }
      : undefined,
    encryption: algorithm === undefined ? undefined : { algorithm, kmsKeyId },
    sendsChecksums: storage.checksums,
    partBytes: storage.part_bytes,
    timeoutMs: storage.timeout_seconds * 1000,
  };
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
