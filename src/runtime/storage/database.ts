/**
 * Chooses the database that the configuration names: a SQLite file in the data folder, which one process owns, or
 * PostgreSQL, which any number of processes share. Each knows where the blobs of its rows are. A server that finds them
 * elsewhere must not start, because it would take all blobs for lost and those that it finds for garbage.
 */
import { randomUUID } from "node:crypto";
import { existsSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { FILE_MODE, hasFiles, syncFolder } from "../../blobs/file-system.ts";
import { type Clock, sleep } from "../../clock.ts";
import type { Closers } from "../../closers.ts";
import type { Config } from "../../config/schema.ts";
import type { CopyStore } from "../../store/copying.ts";
import { StoreUnavailable } from "../../store/failures.ts";
import type { OnDamaged } from "../../store/sqlite/damage.ts";
import { lockDataDir } from "../../store/sqlite/lock.ts";
import { hasTables, openSqliteStore } from "../../store/sqlite/store.ts";
import type { Store } from "../../store/store.ts";

/** The folder of the blobs in the data folder. */
export const BLOBS = "blobs";
/** The name of that place. */
export const FOLDER_PLACE = "blobs";

export interface Refusal {
  readonly ok: false;
  readonly problem: string;
}

export type Purpose = "serve" | "copy from" | "copy to";

export interface DatabaseDeps {
  readonly clock: Clock;
  /** Gets what closes the parts. */
  readonly closers: Pick<Closers, "add">;
  /** What this process does with the database; it serves it unless this says otherwise. */
  readonly purpose?: Purpose;
  /** The callback for the first sign that the file of a SQLite database is damaged. */
  readonly onDamaged?: OnDamaged;
  /** The callback for statements that go to a PostgreSQL server. */
  readonly onStatements?: (count: number) => void;
}

export interface FoundPlace {
  readonly ok: true;
  /** Whether the database has never been opened. */
  readonly isNew: boolean;
  /** Whether it has had no place for blobs so far. A place that already is in use then belongs to another database. */
  readonly isPlaceless: boolean;
  /** The place of the blobs; null when the database does not know it. */
  readonly place: string | null;
}

export interface Database {
  /** The name of the database in messages. */
  readonly name: string;
  /** Whether other processes may use the same database and the same blobs. */
  readonly isShared: boolean;
  /** Tells an operator how to move the blobs to another place. */
  readonly howToMove: string;
  findPlace(): Promise<FoundPlace | Refusal>;
  /** Opens the database, whose blobs are in `place` from now on, unless `findProblem` tells why they cannot be there. */
  open(place: string, findProblem: FindProblem): Promise<OpenedDatabase | Refusal>;
  /** Opens the database for work without blobs, wherever they are; null when there is none in the folder yet. */
  openAlone(): Promise<OpenedDatabase | Refusal | null>;
}

type FindProblem = (copying: CopyStore) => Promise<string | null>;

export interface OpenedDatabase {
  readonly ok: true;
  readonly store: Store;
  readonly copying: CopyStore;
}

type Places = Pick<Config, "database" | "database_url">;

/** A server marks its folder within milliseconds. */
const MARK_TRIES = 20;
const MARK_PAUSE_MS = 100;

export const SQLITE_FILE = "batchd.sqlite";
/** The file that names the place of the blobs. It belongs to a SQLite database. */
const PLACE_FILE = "batchd.storage";
/** The file in a folder with blobs that names their database on PostgreSQL. */
const INSTALLATION_FILE = "batchd.database";

/**
 * The interval at which a process looks for work without a nudge. On SQLite it has made all work itself. On PostgreSQL each
 * look of each process is a statement, and a batch of another process must start within ten seconds where no nudge arrives.
 */
const POLL_EVERY_MS = 1_000;
const POLL_SHARED_EVERY_MS = 4_000;

export const pollEveryMs = ({ database_url: url }: Pick<Config, "database_url">): number =>
  url === undefined ? POLL_EVERY_MS : POLL_SHARED_EVERY_MS;

/** Returns whether a server has used the folder, or has its database elsewhere. PostgreSQL is not asked. */
export const hasDatabase = (dir: string, { database_url: url }: Places): boolean =>
  url !== undefined ||
  [SQLITE_FILE, PLACE_FILE, INSTALLATION_FILE].some((name) => mayExist(join(dir, name))) ||
  hasFiles(join(dir, BLOBS));

/** Returns true for a file in a folder that another user owns: opening it says so. */
function mayExist(path: string): boolean {
  try {
    statSync(path);
    return true;
  } catch (error) {
    return !["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "");
  }
}

/**
 * Opens the SQLite database of a server that is running, for a command beside it; null when no server has the folder. The
 * lock of the folder keeps a second engine away. SQLite itself lets another process write rows.
 */
export async function openBesideServer(
  dir: string,
  { database_url: url }: Places,
  { clock, closers }: DatabaseDeps,
): Promise<{ readonly ok: true; readonly store: Store } | Refusal | null> {
  const path = join(dir, SQLITE_FILE);
  if (url !== undefined || !existsSync(path)) return null;
  const unlock = lockDataDir(dir, path);
  if (unlock !== null) {
    unlock();
    return null;
  }
  const opened = await openSqliteStore({ path, clock, isBesideServer: true });
  if (opened.ok) closers.add("store", () => opened.store.close());
  return opened;
}

export function databaseIn(
  dir: string,
  { database_url: url, database }: Places,
  deps: DatabaseDeps,
): Database {
  if (url === undefined) return sqliteIn(dir, deps);
  const { pool_size: poolSize, tls, ca_file: caFile, listen: listens } = database;
  // The name tells this process from the servers that it looks for.
  const isServing = (deps.purpose ?? "serve") === "serve";
  const applicationName = isServing ? undefined : `batchd migrate-to ${randomUUID().slice(0, 8)}`;
  const connection = { url, poolSize, tls, caFile, applicationName };
  const { clock, onStatements } = deps;
  return postgresWith(dir, { ...connection, listens, clock, onStatements }, deps);
}

/** Returns null for an empty file too: older versions wrote the one of the place without a sync, and a power cut emptied it. */
const readOrNull = (path: string) =>
  (existsSync(path) ? readFileSync(path, "utf8").trim() : "") || null;

/** The rename comes last, because another replica may read the file at any moment, and a power cut may come. */
function writeWhole(path: string, text: string): void {
  const temporary = `${path}-${randomUUID()}`;
  try {
    writeFileSync(temporary, text, { mode: FILE_MODE, flush: true });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
}

function sqliteIn(dir: string, { clock, closers, onDamaged }: DatabaseDeps): Database {
  const path = join(dir, SQLITE_FILE);
  const placePath = join(dir, PLACE_FILE);
  const findPlace = async (): Promise<FoundPlace | Refusal> => {
    if (existsSync(join(dir, INSTALLATION_FILE))) {
      const problem = `the files in ${dir} belong to a database on PostgreSQL: set database_url, or choose another folder with --data-dir`;
      return { ok: false, problem };
    }
    // The file of the place is missing as long as the blobs are in the folder.
    const inFolder = hasFiles(join(dir, BLOBS)) ? FOLDER_PLACE : null;
    const isNew = !hasTables(path);
    const isPlaceless = isNew || (inFolder === null && !existsSync(placePath));
    return { ok: true, isNew, isPlaceless, place: readOrNull(placePath) ?? inFolder };
  };
  const openLocked = async (): Promise<OpenedDatabase | Refusal> => {
    const unlock = lockDataDir(dir, path);
    if (unlock === null) {
      const problem = `another batchd is using the data folder ${dir}: stop it, or choose another folder with --data-dir`;
      return { ok: false, problem };
    }
    closers.add("lock", async () => unlock());
    const opened = await openSqliteStore({ path, clock, ...(onDamaged && { onDamaged }) });
    if (opened.ok) closers.add("store", () => opened.store.close());
    return opened;
  };
  return {
    name: path,
    isShared: false,
    howToMove: `remove ${placePath}`,
    findPlace,
    open: async (place, findProblem) => {
      const opened = await openLocked();
      if (!opened.ok) return opened;
      const problem = await findProblem(opened.copying);
      if (problem !== null) return { ok: false, problem };
      if ((readOrNull(placePath) ?? FOLDER_PLACE) !== place) writeWhole(placePath, place);
      return opened;
    },
    openAlone: async () => {
      const found = await findPlace();
      if (!found.ok) return found;
      return found.isNew ? null : openLocked();
    },
  };
}

/** Loads the driver only here, because a server on SQLite has no use for it. */
const loadPostgres = () => import("../../store/postgres/store.ts");

type Postgres = Awaited<ReturnType<typeof loadPostgres>>;
type PostgresOptions = Parameters<Postgres["openPostgresStore"]>[0];
type OpenedPostgres = Extract<
  Awaited<ReturnType<Postgres["openPostgresStore"]>>,
  { readonly ok: true }
>;

function postgresWith(dir: string, options: PostgresOptions, { closers }: DatabaseDeps): Database {
  let opened: OpenedPostgres | null = null;
  const open = async () => {
    if (opened !== null) return opened;
    const { openPostgresStore } = await loadPostgres();
    const result = await openPostgresStore(options);
    if (!result.ok) return result;
    opened = result;
    closers.add("store", () => result.store.close());
    return opened;
  };
  const secondDatabase = (): Refusal | null => {
    const sqlitePath = join(dir, SQLITE_FILE);
    if (!existsSync(sqlitePath)) return null;
    const problem = `database_url is set, but ${sqlitePath} is the database of this folder: leave database_url out, or choose another data_dir`;
    return { ok: false, problem };
  };
  return {
    name: "the database on PostgreSQL",
    isShared: true,
    howToMove: "write the new place into `installation.blob_place`",
    findPlace: () =>
      refusing(async () => {
        const second = secondDatabase();
        if (second !== null) return second;
        const facts = await open();
        if (!facts.ok) return facts;
        const { id, blobPlace } = await facts.installation.read();
        const problem = await foreignFolder(dir, { id, place: blobPlace, clock: options.clock });
        if (problem !== null) return { ok: false, problem };
        const isNew = blobPlace === null;
        return { ok: true, isNew, isPlaceless: isNew, place: blobPlace };
      }),
    open: (place, findProblem) =>
      refusing(async () => {
        const facts = await open();
        if (!facts.ok) return facts;
        const unfit = await findProblem(facts.copying);
        if (unfit !== null) return { ok: false, problem: unfit } as const;
        await facts.installation.setBlobPlaceIfNone(place, async (newId) => {
          if (place === FOLDER_PLACE) await markFolder(dir, newId);
        });
        const { id, blobPlace } = await facts.installation.read();
        const problem = await foreignFolder(dir, { id, place: blobPlace, clock: options.clock });
        if (problem !== null) return { ok: false, problem };
        if (blobPlace === place) return facts;
        const other = `another server has just begun with this database, and its files are in ${blobPlace}`;
        return { ok: false, problem: `${other}, not in ${place}: give both the same storage` };
      }),
    openAlone: () => refusing(async () => secondDatabase() ?? (await open())),
  };
}

interface Belonging {
  readonly id: string;
  readonly place: string | null;
  readonly clock: Pick<Clock, "after">;
}

/**
 * Returns the reason for which the folder does not belong to the installation `id`, or null. The first server of a new
 * database marks its folder and names the place in one commit. A share may show the mark to another one a moment later.
 */
async function foreignFolder(dir: string, { id, place, clock }: Belonging): Promise<string | null> {
  const path = join(dir, INSTALLATION_FILE);
  let owner = readOrNull(path);
  for (let n = 0; n < MARK_TRIES && owner === null && place === FOLDER_PLACE; n++) {
    await sleep(clock, MARK_PAUSE_MS);
    owner = readOrNull(path);
  }
  if (owner !== null && owner !== id) {
    return `the files in ${dir} belong to another database on PostgreSQL: correct database_url, or choose another folder with --data-dir`;
  }
  if (owner === null && place === FOLDER_PLACE) {
    return `the files of this database are in another folder: there is no ${path}. Replicas need a folder that all of them share`;
  }
  return null;
}

/** The error for a folder that cannot be marked, such as one on a full disk. The database is not at fault. */
class NotMarked extends Error {
  override readonly name = "NotMarked";
}

async function markFolder(dir: string, id: string): Promise<void> {
  const path = join(dir, INSTALLATION_FILE);
  try {
    if (!existsSync(path)) writeWhole(path, id);
    await syncFolder(dir);
  } catch (cause) {
    throw new NotMarked(`cannot write to the data folder ${dir}: ${reasonOf(cause)}`, { cause });
  }
}

async function refusing<T>(work: () => Promise<T>): Promise<T | Refusal> {
  try {
    return await work();
  } catch (cause) {
    if (cause instanceof NotMarked) return { ok: false, problem: cause.message };
    return { ok: false, problem: `cannot open the database on PostgreSQL: ${reasonOf(cause)}` };
  }
}

/** Only the database says which right or table is missing. An error with several addresses that refused has no message. */
function reasonOf(cause: unknown): string {
  if (cause instanceof StoreUnavailable) return reasonOf(cause.cause);
  const { message, code } = cause as NodeJS.ErrnoException;
  return message || code || String(cause);
}
