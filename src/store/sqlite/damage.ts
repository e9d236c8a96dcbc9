/**
 * Watches for damage of the database file, which SQLite finds when it reads a page that makes no sense. More writes
 * could spread it, and an index that is wrong could have a file removed that a row still names. So from then on nothing
 * is written, and every call fails, and says what the operator has to do.
 * A read that the disk has failed says the same, but is no damage, and the call may succeed later.
 * Nothing is lost: answers stay in the journal, and work waits until a server starts on a database that was restored.
 */
import Database from "better-sqlite3";
import { StoreDamaged, StoreUnavailable } from "../failures.ts";
import type { Store } from "../store.ts";
import type { Db } from "./database.ts";

export type OnDamaged = (damage: StoreDamaged) => void;

/** Returns what an error of SQLite says about the file at `path`; null if the error is about something else. */
export function damageOf(path: string, error: unknown): StoreDamaged | null {
  if (!saysDamaged(error)) return null;
  return error.code === MAY_BE_FAILED_READ && isFailedRead(path)
    ? null
    : new StoreDamaged(path, error);
}

type SqliteError = InstanceType<typeof Database.SqliteError>;

const saysDamaged = (error: unknown): error is SqliteError =>
  error instanceof Database.SqliteError &&
  (error.code === "SQLITE_NOTADB" || error.code.startsWith("SQLITE_CORRUPT"));

/** SQLite gives this code to a damaged page, and to one that the disk has failed to read (`SQLITE_IOERR_CORRUPTFS`). */
const MAY_BE_FAILED_READ = "SQLITE_CORRUPT";
const UNREADABLE = /unable to get the page\. error code=(\d+)/;
/** The last byte of the number of every error of a disk. */
const IOERR = 10;

/**
 * Whether it was the disk that failed, as far as another look at the whole database can tell. The look needs a connection of its
 * own, since the other one may have kept what it read. A plain read of the file would end SQLite's locks on it.
 */
function isFailedRead(path: string): boolean {
  try {
    const database = new Database(path, { readonly: true });
    try {
      const found = String(database.pragma("integrity_check(1)", { simple: true }));
      return found === "ok" || (Number(UNREADABLE.exec(found)?.[1]) & 0xff) === IOERR;
    } finally {
      database.close();
    }
  } catch (thrown) {
    return thrown instanceof Database.SqliteError && thrown.code.startsWith("SQLITE_IOERR");
  }
}

interface Watching {
  readonly onDamaged: OnDamaged;
  /** The callback for every error of a call. */
  readonly onFailure: (error: unknown) => void;
}

/**
 * Returns the methods of `store`, which stop at the first sign of damage. A call that was made before may still succeed.
 */
export function watchForDamage(db: Db, store: Store, { onDamaged, onFailure }: Watching): Store {
  let damage: StoreDamaged | null = null;
  const translate = (error: unknown): unknown => {
    if (damage !== null) return damage;
    onFailure(error);
    damage = damageOf(db.$client.name, error);
    if (damage === null) return saysDamaged(error) ? new StoreUnavailable(error) : error;
    db.$client.pragma("query_only = ON");
    onDamaged(damage);
    return damage;
  };
  const watcher: Watcher = { findDamage: () => damage, translate };
  const watched = Object.entries(store).map(([name, method]) => [name, watch(method, watcher)]);
  return { ...(Object.fromEntries(watched) as Store), close: () => store.close() };
}

type Method = (...args: never[]) => unknown;

interface Watcher {
  /** Returns the damage that was found before. */
  readonly findDamage: () => StoreDamaged | null;
  readonly translate: (error: unknown) => unknown;
}

/** What a call returns tells how it fails. So it is made even after damage, when it can change nothing. */
const watch =
  (method: Method, { findDamage, translate }: Watcher): Method =>
  (...args) => {
    const damage = findDamage();
    const result = method(...args);
    if (result instanceof Promise) {
      return result.then(
        (value: unknown) => {
          if (damage !== null) throw damage;
          return value;
        },
        (error: unknown) => {
          throw translate(error);
        },
      );
    }
    return isPaged(result) ? watchPages(result, { findDamage, translate }) : result;
  };

const isPaged = (result: unknown): result is AsyncIterable<unknown> =>
  typeof result === "object" && result !== null && Symbol.asyncIterator in result;

async function* watchPages(
  pages: AsyncIterable<unknown>,
  { findDamage, translate }: Watcher,
): AsyncGenerator<unknown> {
  try {
    for await (const page of pages) {
      const damage = findDamage();
      if (damage !== null) throw damage;
      yield page;
    }
  } catch (error) {
    throw translate(error);
  }
}
