/**
 * The data folder: the names of what is in it, and small files that a power cut leaves whole. Only the user that runs the
 * server may have access to it.
 */
import { randomUUID } from "node:crypto";
import {
  accessSync,
  constants,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { chmod } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  FILE_MODE,
  FOLDER_MODE,
  hasFiles,
  isOpenToOthers,
  makeFolder,
} from "../../blobs/file-system.ts";

/** The folder of the blobs in the data folder. */
export const BLOBS = "blobs";
export const SQLITE_FILE = "batchd.sqlite";
/** The file that names the place of the blobs. It belongs to a SQLite database. */
export const PLACE_FILE = "batchd.storage";
/** The file in a folder with blobs that names their database on PostgreSQL. */
export const INSTALLATION_FILE = "batchd.database";

/** Matches the names in a folder that only batchd uses. */
const OWN_NAMES =
  /^(?:batchd\.(?:sqlite(?:-wal|-shm)?|lock(?:-journal)?|database|storage|credentials-key)|blobs|locations|lost\+found)$/;

/** Returns whether a server has used the folder. */
export const wasUsed = (dir: string): boolean =>
  [SQLITE_FILE, PLACE_FILE, INSTALLATION_FILE].some((name) => mayExist(join(dir, name))) ||
  hasFiles(join(dir, BLOBS));

/** Returns true for a file in a folder that another user owns: opening it says so. */
function mayExist(path: string): boolean {
  try {
    statSync(path);
    return true;
  } catch (error) {
    return !["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "");
  }
}

/** Creates the folder. Returns the reason for which it cannot be used, or null. */
export async function makeDataDir(dir: string): Promise<string | null> {
  try {
    // A recursive `mkdir` below /proc never returns, so it is only used where it is needed.
    if (!existsSync(dir)) await makeFolder(dir, existsSync(dirname(dir)) ? "last" : "all");
    if (!statSync(dir).isDirectory()) return `the data folder ${dir} is a file`;
    accessSync(dir, constants.W_OK);
    await closeToOthers(dir);
    return null;
  } catch (cause) {
    return `cannot write to the data folder ${dir}: ${(cause as Error).message}`;
  }
}

/**
 * Closes the folder to other users, if batchd owns it: a mounted volume may belong to root. A folder with other
 * contents, such as `/tmp`, stays open. Its blobs and database are closed to others in any case.
 */
async function closeToOthers(dir: string): Promise<void> {
  if (!(await isOpenToOthers(dir)) || !readdirSync(dir).every((name) => OWN_NAMES.test(name))) {
    return;
  }
  await chmod(dir, FOLDER_MODE).catch(() => {});
}

/** Returns null for an empty file too: older versions wrote the one of the place without a sync, and a power cut emptied it. */
export const readOrNull = (path: string): string | null =>
  (existsSync(path) ? readFileSync(path, "utf8").trim() : "") || null;

/** The rename comes last, because another replica may read the file at any moment, and a power cut may come. */
export function writeWhole(path: string, text: string): void {
  const temporary = `${path}-${randomUUID()}`;
  try {
    writeFileSync(temporary, text, { mode: FILE_MODE, flush: true });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
}
