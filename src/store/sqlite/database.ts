/** One connection to the database file, and the one way to write through it. */

import Database from "better-sqlite3";
import { drizzle } from "./drizzle.ts";
import { restrictDatabase } from "./lock.ts";

export type Db = ReturnType<typeof openDatabase>;

/** Returns the present time, by the clock of the store. */
export type Now = () => number;

/**
 * A write fails when another connection (a backup, a shell) holds the write lock longer than this. The wait is short
 * because nothing else runs during it, and every writer here tries again.
 */
const BUSY_TIMEOUT_MS = 100;

export function openDatabase(path: string) {
  const client = new Database(path, { timeout: BUSY_TIMEOUT_MS });
  restrictDatabase(path);
  client.pragma("journal_mode = WAL");
  // An answer of the API is a promise: a commit must survive a power cut, not only a crash.
  client.pragma("synchronous = FULL");
  client.pragma("foreign_keys = ON");
  return drizzle(client);
}

/**
 * Runs `change` as one transaction. Statements prepared on `db` take part, as there is one connection. The
 * transaction takes the write lock first: SQLite can refuse the lock to a transaction that has read before.
 */
export function write<T>(db: Db, change: () => T): T {
  return db.transaction(change, { behavior: "immediate" });
}

/**
 * Runs `change` as {@link write} does, without the sync, which blocks the event loop. It serves three kinds of changes.
 * Claims, renewals and releases need not survive a power cut: the holder of the lease is gone then as well. All writes
 * under the lease come later in the log, so both are lost or neither is. What is removed once is removed again after a power
 * cut. Commits of the journal wait for `wal-sync.ts` instead.
 */
export function writeUnsynced<T>(db: Db, change: () => T): T {
  db.$client.pragma("synchronous = NORMAL");
  try {
    return write(db, change);
  } finally {
    db.$client.pragma("synchronous = FULL");
  }
}
