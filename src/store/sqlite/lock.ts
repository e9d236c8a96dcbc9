/**
 * One process owns a data folder: two engines on it would take each other's leases back and write over
 * each other's files.
 *
 * The owner keeps an exclusive transaction open on a small file of its own. That is a lock of the
 * kernel, so it goes when the process goes, also by `kill -9`, and there is nothing stale to clean up:
 * a file with a process id would outlive its process, and ids are used again.
 *
 * A file can be removed or replaced, and then its lock guards nothing. The database therefore remembers the inode of
 * the lock file of its owner. While the owner lives it holds that inode open, so no other file can have it. Whoever
 * holds the lock on a file of the same inode knows that the owner before is gone. Whoever finds another inode, and no
 * sign of an orderly end, asks for the database file alone: SQLite keeps a shared lock of the kernel on it for as long
 * as a connection is open, and refuses while there is one.
 */
import { chmodSync, existsSync, statSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";

const LOCK_FILE = "batchd.lock";
/** For somebody's shell, or a backup, to be done with the database. */
const PROBE_TIMEOUT_MS = 1_000;

/** A connection that nothing refers to is collected and closed, and its lock would go with it. */
const held = new Set<Database.Database>();

const isBusy = (error: unknown) =>
  error instanceof Database.SqliteError && error.code.startsWith("SQLITE_BUSY");

/**
 * `databasePath` names a file in the folder `dir`, which must exist; the database is made when it is missing. Returns
 * the way to give the folder up, or null when somebody else has it.
 */
export function lockDataDir(dir: string, databasePath: string): (() => void) | null {
  const lockPath = join(dir, LOCK_FILE);
  const lock = new Database(lockPath, { timeout: 0 });
  try {
    // Nothing is ever written, so no journal needs to lie beside it.
    lock.pragma("journal_mode = MEMORY");
    lock.exec("begin exclusive");
    restrict(lockPath);
    const owner = inodeOf(lockPath);
    if (!isLeft(databasePath, owner)) {
      lock.close();
      return null;
    }
    setOwner(databasePath, owner);
    held.add(lock);
    return () => {
      if (ownerOf(databasePath) === owner) setOwner(databasePath, NO_OWNER);
      held.delete(lock);
      lock.close();
    };
  } catch (error) {
    lock.close();
    if (isBusy(error)) return null;
    throw error;
  }
}

/** What `user_version` of the database says of its owner: nothing else makes use of it. */
const NO_OWNER = 0;

/** Made to fit the 32 bits of `user_version`, and never `NO_OWNER`. */
const inodeOf = (path: string): number =>
  Number(statSync(path, { bigint: true }).ino % 0x7fff_fffen) + 1;

function withDatabase<T>(path: string, timeout: number, work: (database: Database.Database) => T) {
  const database = new Database(path, { timeout });
  try {
    return work(database);
  } finally {
    database.close();
  }
}

const ownerOf = (path: string) =>
  withDatabase(path, PROBE_TIMEOUT_MS, (database) =>
    database.pragma("user_version", { simple: true }),
  );

function setOwner(path: string, owner: number): void {
  withDatabase(path, PROBE_TIMEOUT_MS, (database) => {
    restrictDatabase(path);
    database.pragma(`user_version = ${owner}`);
  });
}

/** Whether no former owner of the database can be alive, for the holder of the lock file `owner`. */
function isLeft(path: string, owner: number): boolean {
  if (!existsSync(path)) return true;
  const former = ownerOf(path);
  if (former === NO_OWNER || former === owner) return true;
  try {
    withDatabase(path, PROBE_TIMEOUT_MS, (database) => {
      database.pragma("locking_mode = EXCLUSIVE");
      database.exec("begin exclusive; commit");
    });
    return true;
  } catch (error) {
    if (isBusy(error)) return false;
    throw error;
  }
}

/** Only the user that runs the server may read what its clients send. */
function restrict(path: string): void {
  if ((statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o600);
}

/** SQLite gives new files beside the database the mode of the database. */
export function restrictDatabase(path: string): void {
  for (const each of [path, `${path}-wal`, `${path}-shm`]) if (existsSync(each)) restrict(each);
}
