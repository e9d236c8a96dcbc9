/**
 * The few file operations that disk.ts is made of. A new name is durable only when its folder
 * has been synced, and a new folder only when its parent has.
 */
import type { Dirent } from "node:fs";
import {
  chmod,
  type FileHandle,
  mkdir,
  open,
  opendir,
  readdir,
  rename,
  rmdir,
  stat,
  unlink,
} from "node:fs/promises";
import { dirname, join, sep } from "node:path";

/** Small pieces are gathered until there is this much: a call costs as much as copying 64 KiB. */
const WRITE_BYTES = 1024 * 1024;
const MOVE_ATTEMPTS = 6;

const hasCode = (error: unknown, codes: readonly string[]) =>
  codes.includes((error as NodeJS.ErrnoException).code ?? "");

/** Null when it fails with one of `codes`. */
export const orNull = <T>(operation: Promise<T>, ...codes: string[]): Promise<T | null> =>
  operation.catch((error: unknown) => {
    if (hasCode(error, codes)) return null;
    throw error;
  });

/** Only the user that runs the server may read what its clients send. */
export const FILE_MODE = 0o600;
export const FOLDER_MODE = 0o700;

/** Whether the mode lets other users do anything with it. */
export const isOpenToOthers = async (path: string): Promise<boolean> =>
  ((await stat(path)).mode & 0o077) !== 0;

/** Takes away from other users what an older version gave them. The folder itself comes last, as the sign that it is done. */
export async function closeToOthers(folder: string): Promise<void> {
  if (!(await isOpenToOthers(folder))) return;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    await orNull(chmod(path, entry.isDirectory() ? FOLDER_MODE : FILE_MODE), "ENOENT");
  }
  await chmod(folder, FOLDER_MODE);
}

/** Creates the folder, and all those above it unless the last one is enough, durably. */
export async function makeFolder(path: string, which: "all" | "last" = "all"): Promise<void> {
  const recursive = which === "all";
  const topmost = await mkdir(path, { recursive, mode: FOLDER_MODE });
  const last = recursive ? (topmost === undefined ? null : dirname(topmost)) : dirname(path);
  if (last !== null) await syncFoldersAbove(path, last);
}

/** Makes the names of a folder, and of those above it up to `last`, durable. */
export async function syncFoldersAbove(path: string, last: string): Promise<void> {
  for (let folder = dirname(path); folder.length >= last.length; folder = dirname(folder)) {
    await syncFolder(folder);
    if (folder === last) return;
  }
}

export async function syncFolder(path: string): Promise<void> {
  await using folder = await open(path, "r");
  await folder.sync();
}

/** Renames a file, creating the folder it goes to; the name of that folder is not durable yet. */
export async function moveInto(from: string, to: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await rename(from, to);
      return;
    } catch (error) {
      // There is no such folder yet, or a delete has taken it away while it was still empty.
      if (!hasCode(error, ["ENOENT"]) || attempt === MOVE_ATTEMPTS) throw error;
      await mkdir(dirname(to), { recursive: true, mode: FOLDER_MODE });
    }
  }
}

/** Removes `from` and the folders above it, up to `root`, as far as they are empty; each is told of before. */
export async function removeEmptyFolders(
  from: string,
  root: string,
  onRemoving: (folder: string) => void,
): Promise<void> {
  for (let folder = from; folder.startsWith(root + sep); folder = dirname(folder)) {
    onRemoving(folder);
    const removed = await orNull(
      rmdir(folder).then(() => true),
      "ENOTEMPTY",
      "EEXIST",
      "ENOENT",
      "ENOTDIR",
    );
    if (removed === null) return;
  }
}

/** Entries that one call reads: a folder may have 100,000 of them, and `readdir` takes 50 ms for as many. */
const ENTRIES_PER_READ = 256;

/** The entries of a folder; none when there is no such folder. */
export async function* entriesOf(path: string): AsyncGenerator<Dirent> {
  const folder = await orNull(opendir(path, { bufferSize: ENTRIES_PER_READ }), "ENOENT", "ENOTDIR");
  if (folder !== null) yield* folder;
}

const REMOVE_ATTEMPTS = 6;
const REMOVED_AT_ONCE = 32;

/** Removes a folder with everything in it, a few files at a time: with 100,000 files `fs.rm` keeps the event loop for 1 s. */
export async function removeFolder(path: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    let removals: Promise<unknown>[] = [];
    for await (const entry of entriesOf(path)) {
      removals.push(removeEntry(entry));
      if (removals.length < REMOVED_AT_ONCE) continue;
      await Promise.all(removals);
      removals = [];
    }
    await Promise.all(removals);
    try {
      await orNull(rmdir(path), "ENOENT", "ENOTDIR");
      return;
    } catch (error) {
      // Something has come meanwhile, or was passed over, as a folder may be read differently while it shrinks.
      if (!hasCode(error, ["ENOTEMPTY", "EEXIST"]) || attempt === REMOVE_ATTEMPTS) throw error;
    }
  }
}

function removeEntry(entry: Dirent): Promise<unknown> {
  const path = join(entry.parentPath, entry.name);
  return entry.isDirectory() ? removeFolder(path) : orNull(unlink(path), "ENOENT");
}

/** One write for all pieces. */
export async function writeAll(file: FileHandle, pieces: readonly Uint8Array[]): Promise<void> {
  const bytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  if (bytes === 0) return;
  const { bytesWritten } = await file.writev(pieces);
  if (bytesWritten < bytes) {
    await file.appendFile(Buffer.concat(pieces).subarray(bytesWritten));
  }
}

/** Writes while the next bytes are on their way; returns how many there were. */
export async function writeStream(
  file: FileHandle,
  source: AsyncIterable<Uint8Array>,
): Promise<number> {
  let bytes = 0;
  let gathered: Uint8Array[] = [];
  let gatheredBytes = 0;
  let writing: Promise<void> = Promise.resolve();
  try {
    for await (const piece of source) {
      gathered.push(piece);
      gatheredBytes += piece.byteLength;
      if (gatheredBytes < WRITE_BYTES) continue;
      await writing;
      writing = writeAll(file, gathered);
      // Whoever awaits it next hears of a fault; until then it must not count as unheard.
      writing.catch(() => {});
      bytes += gatheredBytes;
      gathered = [];
      gatheredBytes = 0;
    }
  } finally {
    await writing;
  }
  await writeAll(file, gathered);
  return bytes + gatheredBytes;
}
