/**
 * Opens the database and the place of the blobs that the configuration names, if they belong together. Parts that are open are
 * closed by `closers`, also after a refusal.
 */
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Blobs } from "../../blobs/blobs.ts";
import type { Config } from "../../config/schema.ts";
import { type CopyStore, isUnfinishedCopy } from "../../store/copying.ts";
import { damageOf } from "../../store/sqlite/damage.ts";
import type { Store } from "../../store/store.ts";
import { type BucketDeps, bucketOf, folderIn, markUse } from "./blob-place.ts";
import { makeDataDir, SQLITE_FILE } from "./data-folder.ts";
import type { DatabaseDeps, Purpose, Refusal } from "./database.ts";
import { databaseIn } from "./databases.ts";
import { mismatch, misplacement, type Pairing, UNFINISHED } from "./pairing.ts";

export type OpenedStorage =
  | { readonly ok: true; readonly store: Store; readonly blobs: Blobs }
  | Refusal;

/** An installation that is open to be copied. */
export interface OpenedCopy {
  readonly ok: true;
  readonly copying: CopyStore;
  readonly blobs: Blobs;
}

export type StorageDeps = DatabaseDeps & BucketDeps;

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

type CallDeps = StorageDeps & { readonly purpose: Purpose };

async function openFor(deps: CallDeps, places: Places) {
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
    return { ok: false, problem: `cannot open the data in ${dir}: ${reasonOf(cause)}` };
  }
}

/** Where the file that processes share of a database has no room, SQLite speaks of an error of the disk. */
function reasonOf(cause: unknown): string {
  const { code, message } = cause as NodeJS.ErrnoException;
  return code === "SQLITE_IOERR_SHMSIZE" ? "the disk is full" : message;
}

/** Returns false if everything is elsewhere. Then a server runs without a folder that it can write to. */
const usesFolder = ({ database_url: url, storage }: Pick<Places, "database_url" | "storage">) =>
  url === undefined || storage.type !== "s3";

/** Returns the folder for files that live as long as one call, such as a repository in which a commit is made. */
export const workFolderOf = (places: Places): string =>
  usesFolder(places) ? join(resolve(places.data_dir), "locations") : tmpdir();

async function open(dir: string, places: Places, deps: CallDeps) {
  const database = databaseIn(dir, places, deps);
  const place =
    places.storage.type === "s3"
      ? await bucketOf(places.storage, deps)
      : folderIn(dir, database.isShared);
  const found = await database.findPlace();
  if (!found.ok) return found;
  const pairing: Pairing = { database, found, place, purpose: deps.purpose };
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
