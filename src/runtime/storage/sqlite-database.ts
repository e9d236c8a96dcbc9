/**
 * A SQLite file in the data folder, which one process owns. The folder holds a file with the place of the blobs, unless
 * they are in the folder themselves.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { hasFiles } from "../../blobs/file-system.ts";
import { lockDataDir } from "../../store/sqlite/lock.ts";
import { hasTables, openSqliteStore } from "../../store/sqlite/store.ts";
import type { Store } from "../../store/store.ts";
import {
  BLOBS,
  INSTALLATION_FILE,
  PLACE_FILE,
  readOrNull,
  SQLITE_FILE,
  writeWhole,
} from "./data-folder.ts";
import {
  type Database,
  type DatabaseDeps,
  FOLDER_PLACE,
  type FoundPlace,
  type OpenedDatabase,
  type Refusal,
} from "./database.ts";

/**
 * Opens the database of a server that is running, for a command beside it; null when no server has the folder. The lock of
 * the folder keeps a second engine away. SQLite itself lets another process write rows.
 */
export async function openSqliteBesideServer(
  dir: string,
  { clock, closers }: DatabaseDeps,
): Promise<{ readonly ok: true; readonly store: Store } | Refusal | null> {
  const path = join(dir, SQLITE_FILE);
  if (!existsSync(path)) return null;
  const unlock = lockDataDir(dir, path);
  if (unlock !== null) {
    unlock();
    return null;
  }
  const opened = await openSqliteStore({ path, clock, isBesideServer: true });
  if (opened.ok) closers.add("store", () => opened.store.close());
  return opened;
}

export function sqliteIn(dir: string, { clock, closers, onDamaged }: DatabaseDeps): Database {
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
