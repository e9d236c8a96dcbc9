/**
 * Opens the database and the place of the blobs, which is the data folder or a bucket. Only this user may have access to
 * the data folder.
 */
import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs";
import { chmod } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { type Blobs, BlobsUnavailable } from "../../blobs/blobs.ts";
import { openDiskBlobs, wasOpened } from "../../blobs/disk.ts";
import { FOLDER_MODE, hasFiles, isOpenToOthers, makeFolder } from "../../blobs/file-system.ts";
import type { OnS3Request, S3Options } from "../../blobs/s3-client.ts";
import type { Config } from "../../config/schema.ts";
import type { StorageConfig } from "../../config/storage.ts";
import { type CopyStore, isUnfinishedCopy } from "../../store/copying.ts";
import { damageOf } from "../../store/sqlite/damage.ts";
import type { Store } from "../../store/store.ts";
import {
  BLOBS,
  type Database,
  type DatabaseDeps,
  databaseIn,
  FOLDER_PLACE,
  type FoundPlace,
  type Purpose,
  type Refusal,
  SQLITE_FILE,
} from "./database.ts";

export type OpenedStorage =
  | { readonly ok: true; readonly store: Store; readonly blobs: Blobs }
  | Refusal;

/** An installation that is open to be copied. */
export interface OpenedCopy {
  readonly ok: true;
  readonly copying: CopyStore;
  readonly blobs: Blobs;
}

export interface StorageDeps extends DatabaseDeps {
  /** The callback for each request to a bucket. */
  readonly onS3Request?: OnS3Request;
}

const UNFINISHED =
  "the database is an unfinished copy of another one: run `batchd migrate-to` again until it ends, or begin anew with an empty database and an empty place for files";

/** Matches the names in a folder that only batchd uses. */
const OWN_NAMES =
  /^(?:batchd\.(?:sqlite(?:-wal|-shm)?|lock(?:-journal)?|database|storage|credentials-key)|blobs|locations|lost\+found)$/;

/** The part of the configuration that names the places. */
type Places = Pick<Config, "data_dir" | "database" | "database_url" | "storage">;

/** Opens the stores. Creates a missing folder, but no bucket. Every open part is added to `closers`. */
export async function openStorage(
  places: Places,
  deps: Omit<StorageDeps, "purpose">,
): Promise<OpenedStorage> {
  return openFor({ ...deps, purpose: "serve" }, places);
}

/**
 * Opens the database for work without files, also where the files cannot be reached or the configuration does not name their place;
 * null when there is no database yet.
 */
export function openWithoutFiles(
  places: Places,
  deps: DatabaseDeps,
): Promise<{ readonly ok: true; readonly store: Store } | Refusal | null> {
  const dir = resolve(places.data_dir);
  return describingDamage(dir, async () => {
    const opened = await databaseIn(dir, places, deps).openAlone();
    if (opened === null || !opened.ok) return opened;
    const isUnfinished = isUnfinishedCopy(await opened.copying.readInstallation());
    return isUnfinished ? { ok: false, problem: UNFINISHED } : opened;
  });
}

/** Opens an installation without serving it. Nothing but the locks tells servers of it. */
export const openForCopying = (
  places: Places,
  deps: StorageDeps & { readonly purpose: "copy from" | "copy to" },
): Promise<OpenedCopy | Refusal> => openFor(deps, places);

async function openFor(deps: StorageDeps, places: Places) {
  const dir = resolve(places.data_dir);
  const isNeeded = deps.purpose !== "copy from" && usesFolder(places);
  const unusable = isNeeded ? await makeDataDir(dir) : null;
  if (unusable !== null) return { ok: false, problem: unusable } as const;
  return describingDamage(dir, () => open(dir, places, deps));
}

async function describingDamage<Opened>(
  dir: string,
  work: () => Promise<Opened>,
): Promise<Opened | Refusal> {
  try {
    return await work();
  } catch (cause) {
    const damage = await damageOf(join(dir, SQLITE_FILE), cause);
    if (damage !== null) return { ok: false, problem: damage.message };
    return { ok: false, problem: `cannot open the data in ${dir}: ${(cause as Error).message}` };
  }
}

/** Returns false if everything is elsewhere. Then a server runs without a folder that it can write to. */
const usesFolder = ({ database_url: url, storage }: Pick<Places, "database_url" | "storage">) =>
  url === undefined || storage.type !== "s3";

/** Returns the folder for files that live as long as one call, such as a repository in which a commit is made. */
export const workFolderOf = (places: Places): string =>
  usesFolder(places) ? join(resolve(places.data_dir), "locations") : tmpdir();

async function open(dir: string, places: Places, deps: StorageDeps) {
  const database = databaseIn(dir, places, deps);
  const place =
    places.storage.type === "s3"
      ? await bucketOf(places.storage, deps)
      : folderIn(dir, database.isShared);
  const found = await database.findPlace();
  if (!found.ok) return found;
  const pairing = { database, found, place, purpose: deps.purpose ?? "serve" };
  const problem = await misplacement(pairing);
  if (problem !== null) return { ok: false, problem } as const;
  // SQLite locks the folder here, so nothing in the folder may be touched before.
  const opened = await database.open(place.name, (copying) => mismatch(pairing, copying));
  if (!opened.ok) return opened;
  const blobs = await place.open();
  const unmarked = pairing.purpose === "copy from" ? null : await markUse(place, blobs);
  if (unmarked !== null) return { ok: false, problem: unmarked } as const;
  return { ...opened, blobs };
}

/** A database and the place that may be the one of its blobs. */
interface Pairing {
  readonly database: Database;
  readonly found: FoundPlace;
  readonly place: BlobPlace;
  readonly purpose: Purpose;
}

/** A place for blobs, before it is used. */
interface BlobPlace {
  /** Identifies the place to a database. */
  readonly name: string;
  /** The name of the place in messages. */
  readonly path: string;
  /** Says what an operator can change to begin anew. */
  readonly howToBeginAnew: string;
  /** Says what an operator can do about files that are in another place than this one. */
  readonly howToFind: string;
  isEmpty(): Promise<boolean>;
  /** Whether a server has used it before; true for a place that does not answer. */
  wasUsed(): Promise<boolean>;
  /** Returns the sign that an installation has the place, or null. */
  findSign(): Promise<string | null>;
  open(): Promise<Blobs>;
}

function folderIn(dir: string, isShared: boolean): BlobPlace {
  const path = join(dir, BLOBS);
  return {
    name: FOLDER_PLACE,
    path,
    howToBeginAnew: "remove that folder",
    howToFind: "mount the disk",
    isEmpty: async () => !hasFiles(path),
    wasUsed: async () => wasOpened(path),
    // Servers without files are kept apart by the lock of the folder or by its mark.
    findSign: async () => (hasFiles(path) ? `there are files in ${path}` : null),
    open: () => openDiskBlobs(path, { isShared }),
  };
}

/** Loads the SDK only if there is a bucket, because of its memory. */
async function bucketOf(
  storage: StorageConfig,
  { clock, closers, onS3Request }: StorageDeps,
): Promise<BlobPlace> {
  const { S3Blobs } = await import("../../blobs/s3.ts");
  const blobs = new S3Blobs(s3Options(storage), clock, onS3Request);
  closers.add("bucket", () => blobs.close());
  const path = `s3://${storage.bucket}/${storage.prefix}`;
  return {
    name: path,
    path,
    howToBeginAnew: "choose another storage.prefix",
    howToFind: "correct storage.endpoint",
    isEmpty: () => blobs.isEmpty(),
    wasUsed: () => blobs.wasUsed().catch(() => true),
    findSign: async () => {
      if (!(await blobs.isEmpty())) return `there are files in ${path}`;
      return (await blobs.wasUsed()) ? `a server has used ${path}` : null;
    },
    open: async () => blobs,
  };
}

/** Returns the reason for which database and blobs do not belong together, or null. Together they would lose all data. */
async function misplacement({ database, found, place, purpose }: Pairing): Promise<string | null> {
  if (found.isNew && purpose === "copy from") return `no server has used ${database.name} yet`;
  if (found.place !== null && found.place !== place.name) {
    return `the files of this database are in ${found.place}, and storage now names ${place.name}: change it back, or copy all files and then ${database.howToMove}`;
  }
  const reached = await reach(place, found);
  if (reached.problem !== null) return reached.problem;
  if (!found.isNew || reached.sign === null) return null;
  // Another replica may have started meanwhile.
  const foundAgain = await database.findPlace();
  if (foundAgain.ok && !foundAgain.isNew && foundAgain.place === place.name) return null;
  if (purpose === "copy to") return `${reached.sign}: the place must be empty and unused`;
  return `${database.name} is missing, but ${reached.sign}: restore the database, or ${place.howToBeginAnew} to begin anew`;
}

/** Returns the reason for which the blobs are not the ones of the rows, or null. */
async function mismatch(
  { database, found, place, purpose }: Pairing,
  copying: CopyStore,
): Promise<string | null> {
  if (purpose === "serve" && isUnfinishedCopy(await copying.readInstallation())) return UNFINISHED;
  if (purpose !== "copy to" && (await hasLostFiles(copying, place))) {
    return `${database.name} knows files, but ${place.path} is empty: ${place.howToFind} or restore the files that belong there, or begin anew with an empty database`;
  }
  // An operator may have copied its blobs there.
  const isStranger = found.isPlaceless && !found.isNew && !(await copying.needsBlobs());
  const sign = isStranger ? await place.findSign() : null;
  if (sign === null) return null;
  return `${database.name} knows no files, but ${sign}: name the database that belongs there, or ${place.howToBeginAnew}`;
}

/**
 * Whether the place of known files is one that no server has used, as where a disk is not mounted or a bucket of the same
 * name is at another address. A server would take all of them for lost, and end every batch without them. A copy would
 * have none of them.
 */
async function hasLostFiles(copying: CopyStore, place: BlobPlace): Promise<boolean> {
  if ((await place.wasUsed()) || !(await place.isEmpty())) return false;
  return copying.needsBlobs();
}

/**
 * A server waits for its own place when that does not answer. It must first see that a place is free before it takes it.
 */
async function reach(place: BlobPlace, { isPlaceless }: FoundPlace) {
  try {
    return { sign: await place.findSign(), problem: null };
  } catch (cause) {
    const mayWait = !isPlaceless && isAway(cause);
    return { sign: null, problem: mayWait ? null : cannotUse(place, cause) };
  }
}

/**
 * Leaves the sign of a server at once. Two new servers with the same prefix by mistake would otherwise both start before
 * the first upload, and each would take the files of the other one for garbage. A place that is away gets its sign later.
 */
async function markUse(place: BlobPlace, blobs: Blobs): Promise<string | null> {
  if (await place.wasUsed()) return null;
  return blobs.ping().then(
    () => null,
    (cause: unknown) => (isAway(cause) ? null : cannotUse(place, cause)),
  );
}

const isAway = (cause: unknown) => cause instanceof BlobsUnavailable && !cause.isRefusal;

const cannotUse = ({ path }: BlobPlace, cause: unknown) =>
  `cannot use ${path}: ${(cause as Error).message}`;

function s3Options(storage: StorageConfig): S3Options {
  const { bucket = "", prefix, region, endpoint, force_path_style: forcePathStyle } = storage;
  const { access_key_id: accessKeyId, secret_access_key: secretAccessKey } = storage;
  const { server_side_encryption: algorithm, kms_key_id: kmsKeyId } = storage;
  const hasKey = accessKeyId !== undefined && secretAccessKey !== undefined;
  return {
    bucket,
    prefix,
    region,
    endpoint,
    forcePathStyle,
    credentials: hasKey
      ? { accessKeyId, secretAccessKey, sessionToken: storage.session_token }
      : undefined,
    encryption: algorithm === undefined ? undefined : { algorithm, kmsKeyId },
    sendsChecksums: storage.checksums,
    partBytes: storage.part_bytes,
    timeoutMs: storage.timeout_seconds * 1000,
    linkSeconds: storage.presigned_downloads ? Math.ceil(storage.presigned_seconds) : undefined,
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
