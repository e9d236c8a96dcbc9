/**
 * Syncs the write-ahead log of SQLite without blocking the event loop.
 *
 * A commit of SQLite that syncs its log blocks the only thread for as long as the disk takes. The journal commits
 * many times a second. Its commits therefore skip the sync and wait for this one, which runs on a thread of its own.
 * One sync covers every commit before it, so commits that wait together share it (group commit: J. Gray, A. Reuter,
 * "Transaction Processing", 1993, section 9.5).
 *
 * A sync through another handle is as good as SQLite's own: it concerns the file, and SQLite deletes the log only
 * when the last connection closes. A checkpoint syncs the database before it lets the log begin anew.
 *
 * A disk that fails a sync may have dropped the bytes, and then the next sync succeeds without them ("Can Applications Recover from
 * fsync Failures?", USENIX ATC 2020). A power cut would leave a hole in the log, and all commits behind it would be lost.
 * So after a failed sync, also one of SQLite's own, the log is written again from the memory of the system.
 */
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import Database from "better-sqlite3";
import { sharedRuns } from "../../shared-runs.ts";
import { type Db, write } from "./database.ts";

const PIECE_BYTES = 1024 * 1024;
const FAILED_SYNC = "SQLITE_IOERR_FSYNC";

export class WalSync {
  readonly #db: Db;
  readonly #path: string;
  /** A sync has failed, and the log was not written again since. */
  #mayHaveHoles = false;
  #opened: Promise<FileHandle> | null = null;

  /** `db` is a connection to a database in WAL mode. */
  constructor(db: Db) {
    this.#db = db;
    this.#path = `${db.$client.name}-wal`;
  }

  /** Resolves when all commits so far survive a power cut. Rejects with the error of the disk. */
  readonly sync = sharedRuns(() => this.#syncFile());

  async close(): Promise<void> {
    await (await this.#opened?.catch(() => null))?.close();
  }

  /** Takes note of an error of SQLite, whose own syncs may fail too. */
  noteFailure(error: unknown): void {
    if (error instanceof Database.SqliteError && error.code === FAILED_SYNC) this.#distrust();
  }

  async #syncFile(): Promise<void> {
    // The log exists from the first statement on. Some systems sync only files that are open for writing.
    this.#opened ??= open(this.#path, "r+").catch((error: unknown) => {
      this.#opened = null;
      throw error;
    });
    const file = await this.#opened;
    if (this.#mayHaveHoles) this.#writeAgain();
    try {
      await file.datasync();
    } catch (error) {
      this.#distrust();
      throw error;
    }
  }

  /** Writes the log again at once, so that a sync of SQLite's own, which may come first, covers it too. */
  #distrust(): void {
    this.#mayHaveHoles = true;
    try {
      this.#writeAgain();
    } catch {
      // The disk takes nothing, or another process writes. The next sync tries again.
    }
  }

  /** The transaction keeps all other writers away from the log. */
  #writeAgain(): void {
    write(this.#db, () => {
      const file = openSync(this.#path, "r+");
      try {
        const piece = Buffer.alloc(PIECE_BYTES);
        for (let at = 0, bytes = 0; ; at += bytes) {
          bytes = readSync(file, piece, 0, piece.length, at);
          if (bytes === 0) break;
          writeAllSync(file, piece.subarray(0, bytes), at);
        }
      } finally {
        closeSync(file);
      }
    });
    this.#mayHaveHoles = false;
  }
}

function writeAllSync(file: number, bytes: Buffer, position: number): void {
  for (let at = 0; at < bytes.length; ) {
    at += writeSync(file, bytes, at, bytes.length - at, position + at);
  }
}
