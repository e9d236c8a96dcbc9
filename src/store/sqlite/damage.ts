/**
 * Watches for damage of the database file, which SQLite finds when it reads a page that makes no sense. More writes
 * could spread it, and an index that is wrong could have a file removed that a row still names. So from then on nothing
 * is written, and every call fails, and says what the operator has to do.
 * A read that the disk has failed says the same, but is no damage. Until another process has looked at the whole file, nothing is
 * written either, and every call fails like one to a database that is away.
 * A file that was removed or replaced while the server runs counts as damaged, because all that SQLite still writes to the former one
 * is gone when the process ends.
 * Nothing is lost: answers stay in the journal, and work waits until a server starts on a database that was restored.
 */
import { statSync } from "node:fs";
import Database from "better-sqlite3";
import { StoreDamaged, StoreUnavailable } from "../failures.ts";
import type { Store } from "../store.ts";
import type { Db } from "./database.ts";
import { checkIntegrity } from "./integrity.ts";

export type OnDamaged = (damage: StoreDamaged) => void;

/** Resolves to what an error of SQLite says about the file at `path`; null if the error is about something else. */
export async function damageOf(path: string, error: unknown): Promise<StoreDamaged | null> {
  if (!saysDamaged(error)) return null;
  const isDamaged = !mayBeFailedRead(error) || (await checkIntegrity(path)) === "damaged";
  return isDamaged ? new StoreDamaged(path, error) : null;
}

type SqliteError = InstanceType<typeof Database.SqliteError>;

const saysDamaged = (error: unknown): error is SqliteError =>
  error instanceof Database.SqliteError &&
  (error.code === "SQLITE_NOTADB" || error.code.startsWith("SQLITE_CORRUPT"));

/** SQLite gives this code to a damaged page, and to one that the disk has failed to read (`SQLITE_IOERR_CORRUPTFS`). */
const mayBeFailedRead = ({ code }: SqliteError) => code === "SQLITE_CORRUPT";

/** The codes of a disk that fails, is full, or takes no writes, and of a machine without memory. */
const OF_MACHINE = /^SQLITE_(?:CANTOPEN|FULL|IOERR|NOMEM|PROTOCOL|READONLY)/;

const isOfMachine = (error: unknown): boolean =>
  error instanceof Database.SqliteError ? OF_MACHINE.test(error.code) : isOfSystem(error);

/** The sync of the log fails with an error of the system (`wal-sync.ts`). */
const isOfSystem = (error: unknown): boolean => error instanceof Error && "syscall" in error;

interface Watching {
  readonly onDamaged: OnDamaged;
  /** The callback for every error of a call. */
  readonly onFailure: (error: unknown) => void;
}

/** Returns the methods of `store`, which stop at the first sign of damage. A call that was made before may still succeed. */
export function watchForDamage(db: Db, store: Store, watching: Watching): Store {
  const watcher = new Watcher(db, watching);
  const watched = Object.entries(store).map(([name, method]) => [name, watch(method, watcher)]);
  const close = async () => {
    await watcher.close();
    await store.close();
  };
  return { ...(Object.fromEntries(watched) as Store), close };
}

class Watcher {
  readonly #db: Db;
  readonly #watching: Watching;
  readonly #closing = new AbortController();
  readonly #file: string;
  #damage: StoreDamaged | null = null;
  /** The error after which the file is looked at. */
  #suspicion: SqliteError | null = null;
  #look: Promise<void> | null = null;

  constructor(db: Db, watching: Watching) {
    this.#db = db;
    this.#watching = watching;
    this.#file = fileAt(db.$client.name);
  }

  /** Returns the error with which every call fails at the moment, or null. A look that could not be made is made again. */
  findTrouble(): Error | null {
    if (this.#damage === null && this.#isMoved()) {
      this.#db.$client.pragma("query_only = ON");
      this.#noteDamage(new Error("its file was removed or replaced"));
    }
    if (this.#damage !== null || this.#suspicion === null) return this.#damage;
    this.#look ??= this.#lookAtFile(this.#suspicion);
    return new StoreUnavailable(this.#suspicion);
  }

  /** Returns the error of a call for one of SQLite. */
  translate(error: unknown): unknown {
    if (this.#damage !== null) return this.#damage;
    this.#watching.onFailure(error);
    if (this.#suspicion === null && saysDamaged(error)) {
      this.#db.$client.pragma("query_only = ON");
      if (mayBeFailedRead(error)) this.#suspicion = error;
      else this.#noteDamage(error);
    }
    return this.findTrouble() ?? (isOfMachine(error) ? new StoreUnavailable(error) : error);
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#look;
  }

  async #lookAtFile(suspicion: SqliteError): Promise<void> {
    const found = await checkIntegrity(this.#db.$client.name, this.#closing.signal);
    this.#look = null;
    if (found === null || this.#damage !== null) return;
    this.#suspicion = null;
    if (found === "damaged") this.#noteDamage(suspicion);
    else this.#db.$client.pragma("query_only = OFF");
  }

  #isMoved(): boolean {
    // Once the store is closed, its file may go.
    if (!this.#db.$client.open) return false;
    try {
      return fileAt(this.#db.$client.name) !== this.#file;
    } catch {
      // A disk that fails says nothing of the file.
      return false;
    }
  }

  #noteDamage(cause: Error): void {
    this.#damage = new StoreDamaged(this.#db.$client.name, cause);
    this.#watching.onDamaged(this.#damage);
  }
}

/** Names the file at the path, as its device and its inode. It is empty where there is none. */
function fileAt(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? "" : `${found.dev}:${found.ino}`;
}

type Method = (...args: never[]) => unknown;

/** What a call returns tells how it fails. So it is made even after damage, when it can change nothing. */
const watch =
  (method: Method, watcher: Watcher): Method =>
  (...args) => {
    const trouble = watcher.findTrouble();
    const result = method(...args);
    if (result instanceof Promise) {
      return result.then(
        (value: unknown) => {
          if (trouble !== null) throw trouble;
          return value;
        },
        (error: unknown) => {
          throw watcher.translate(error);
        },
      );
    }
    return isPaged(result) ? watchPages(result, watcher) : result;
  };

const isPaged = (result: unknown): result is AsyncIterable<unknown> =>
  typeof result === "object" && result !== null && Symbol.asyncIterator in result;

async function* watchPages(
  pages: AsyncIterable<unknown>,
  watcher: Watcher,
): AsyncGenerator<unknown> {
  try {
    for await (const page of pages) {
      const trouble = watcher.findTrouble();
      if (trouble !== null) throw trouble;
      yield page;
    }
  } catch (error) {
    throw watcher.translate(error);
  }
}
