/**
 * Watches for damage of the database file, which SQLite finds when it reads a page that makes no sense. More writes
 * could spread it, so from then on the connection only reads, and every failing call says what the operator has to do.
 * Nothing is lost: answers stay in the journal, and work waits until a server starts on a database that was restored.
 */
import Database from "better-sqlite3";
import { StoreDamaged } from "../failures.ts";
import type { Store } from "../store.ts";
import type { Db } from "./database.ts";

export type OnDamaged = (damage: StoreDamaged) => void;

/** Returns what an error of SQLite says about the file at `path`; null if the error is about something else. */
export function damageOf(path: string, error: unknown): StoreDamaged | null {
  if (!(error instanceof Database.SqliteError)) return null;
  const isDamage = error.code === "SQLITE_NOTADB" || error.code.startsWith("SQLITE_CORRUPT");
  return isDamage ? new StoreDamaged(path, error) : null;
}

/** Returns the methods of `store`, which stop all writes at the first sign of damage. */
export function watchForDamage(db: Db, store: Store, onDamaged: OnDamaged): Store {
  let damage: StoreDamaged | null = null;
  const translate = (error: unknown): unknown => {
    if (damage !== null) return damage;
    damage = damageOf(db.$client.name, error);
    if (damage === null) return error;
    db.$client.pragma("query_only = ON");
    onDamaged(damage);
    return damage;
  };
  const watched = Object.entries(store).map(([name, method]) => [name, watch(method, translate)]);
  return {
    ...(Object.fromEntries(watched) as Store),
    ping: async () => {
      if (damage !== null) throw damage;
      await store.ping().catch((error: unknown) => {
        throw translate(error);
      });
    },
    close: () => store.close(),
  };
}

type Method = (...args: never[]) => unknown;
type Translate = (error: unknown) => unknown;

const watch =
  (method: Method, translate: Translate): Method =>
  (...args) => {
    const result = method(...args);
    if (result instanceof Promise) {
      return result.catch((error: unknown) => {
        throw translate(error);
      });
    }
    return isPaged(result) ? watchPages(result, translate) : result;
  };

const isPaged = (result: unknown): result is AsyncIterable<unknown> =>
  typeof result === "object" && result !== null && Symbol.asyncIterator in result;

async function* watchPages(pages: AsyncIterable<unknown>, translate: Translate) {
  try {
    yield* pages;
  } catch (error) {
    throw translate(error);
  }
}
