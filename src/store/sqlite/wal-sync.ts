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
 */
import { type FileHandle, open } from "node:fs/promises";

export class WalSync {
  readonly #path: string;
  #opened: Promise<FileHandle> | null = null;
  #running: Promise<void> | null = null;
  /** The next sync begins when the running one has ended, which may have begun before the latest commits. */
  #next: Promise<void> | null = null;

  /** `databasePath` names a database in WAL mode, to which the process holds a connection. */
  constructor(databasePath: string) {
    this.#path = `${databasePath}-wal`;
  }

  /** Resolves when all commits so far survive a power cut. Rejects with the error of the disk. */
  sync(): Promise<void> {
    if (this.#running === null) return this.#start();
    this.#next ??= this.#running.then(
      () => this.#start(),
      () => this.#start(),
    );
    return this.#next;
  }

  async close(): Promise<void> {
    await (await this.#opened?.catch(() => null))?.close();
  }

  #start(): Promise<void> {
    this.#next = null;
    const running = this.#syncFile().finally(() => {
      this.#running = null;
    });
    this.#running = running;
    return running;
  }

  async #syncFile(): Promise<void> {
    // The log exists from the first statement on. Some systems sync only files that are open for writing.
    this.#opened ??= open(this.#path, "r+").catch((error: unknown) => {
      this.#opened = null;
      throw error;
    });
    await (await this.#opened).datasync();
  }
}
