/**
 * One process owns a data folder: two engines on it would take each other's leases back and write over
 * each other's files.
 *
 * The owner keeps an exclusive transaction open on a small file of its own. That is a lock of the
 * kernel, so it goes when the process goes, also by `kill -9`, and there is nothing stale to clean up:
 * a file with a process id would outlive its process, and ids are used again.
 */
import { join } from "node:path";
import Database from "better-sqlite3";

const LOCK_FILE = "batchd.lock";

/** A connection that nothing refers to is collected and closed, and its lock would go with it. */
const held = new Set<Database.Database>();

/** `dir` must exist. Returns the way to give it up, or null when somebody else has it. */
export function lockDataDir(dir: string): (() => void) | null {
  const lock = new Database(join(dir, LOCK_FILE), { timeout: 0 });
  try {
    lock.exec("begin exclusive");
  } catch (error) {
    lock.close();
    if (error instanceof Database.SqliteError && error.code.startsWith("SQLITE_BUSY")) return null;
    throw error;
  }
  held.add(lock);
  return () => {
    held.delete(lock);
    lock.close();
  };
}
