/**
 * The lock of a data folder. It exists because two engines on one folder would take each other's leases back and
 * write over each other's files. One process at a time may own a data folder.
 *
 * The owner keeps an exclusive transaction open on a small file of its own. The kernel holds that lock and ends it
 * with the process, also after `kill -9`, so nothing stale remains. A file with a process id would outlive its
 * process, and ids are used again.
 *
 * The lock of a file that was removed or replaced guards nothing. The database therefore remembers the inode of its
 * owner's lock file. The owner holds that inode open while it lives, so no other file can have it.
 *
 * A process that holds the lock on a file of the same inode knows that the owner before is gone. A process that finds
 * another inode, and no sign of an orderly end, asks for exclusive use of the database file. SQLite refuses that
 * while another connection is open: each keeps a shared lock of the kernel on the file.
 */
import { chmodSync, existsSync, statSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";

const LOCK_FILE = "batchd.lock";
/** A shell or a backup may need so long to finish with the database. */
const PROBE_TIMEOUT_MS = 1_000;

/** The set keeps the connections alive: a collected connection is closed, and its lock ends with it. */
const held = new Set<Database.Database>();

const isBusy = (error: unknown) =>
  error instanceof Database.SqliteError && error.code.startsWith("SQLITE_BUSY");

/**
 * Locks the folder `dir`, which must exist. `databasePath` names a file in it; the database is made when it is
 * missing. Returns a function that gives the folder up, or null when another process owns it.
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
      signOff(databasePath, owner);
      held.delete(lock);
      lock.close();
    };
  } catch (error) {
    lock.close();
    if (isBusy(error)) return null;
    throw error;
  }
}

/** `user_version` of the database holds its owner; nothing else uses it. */
const NO_OWNER = 0;

/** Returns the inode, cut to the 32 bits of `user_version` and never `NO_OWNER`. */
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

/** Leaves the sign of an orderly end. A full disk takes none, and the next owner looks as after a crash. */
function signOff(path: string, owner: number): void {
  try {
    if (ownerOf(path) === owner) setOwner(path, NO_OWNER);
  } catch (error) {
    if (!(error instanceof Database.SqliteError)) throw error;
  }
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
