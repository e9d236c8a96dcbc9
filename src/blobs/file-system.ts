/**
 * The file operations of disk.ts. A new name is durable only after a sync of its folder, and a new folder only after a
 * sync of its parent.
 */
import { type Dir, type Dirent, existsSync, opendirSync, statSync } from "node:fs";
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
  statfs,
  unlink,
} from "node:fs/promises";
import { dirname, join, sep } from "node:path";

/**
 * Small pieces are gathered, because a call costs as much as a copy of 64 KiB. A client may stop in the middle of an upload, and
 * there may be thousands of them. So writes get shorter the more streams there are, and all of them gather some megabytes together.
 */
const MAX_WRITE_BYTES = 1024 * 1024;
const MIN_WRITE_BYTES = 16 * 1024;
const WRITES_BYTES = 16 * 1024 * 1024;
const MOVE_ATTEMPTS = 6;

export const hasCode = (error: unknown, codes: readonly string[]) =>
  codes.includes((error as NodeJS.ErrnoException).code ?? "");

/**
 * What blobs leave free: so many bytes, or this part of a small disk. A file system that does not know its size has nothing
 * to leave.
 */
const SPARED = { bytes: 16 * 1024 * 1024, part: 1 / 32 };

/** The error for a disk that has room for little more than the database. */
class DiskFull extends Error {
  override readonly name = "DiskFull";
  readonly code = "ENOSPC";
}

/**
 * Throws when blobs have left too little room to the database beside them. On a disk without any, nothing can be deleted and
 * no server can start.
 */
export async function assertRoom(folder: string): Promise<void> {
  const { bavail, blocks, bsize } = await statfs(folder);
  const sparedBytes = Math.min(SPARED.bytes, SPARED.part * blocks * bsize);
  if (bavail * bsize >= sparedBytes) return;
  throw new DiskFull(`there is too little room on the disk of ${folder}`);
}

/** Resolves to null when the operation fails with one of `codes`. */
export const orNull = <T>(operation: Promise<T>, ...codes: string[]): Promise<T | null> =>
  operation.catch((error: unknown) => {
    if (hasCode(error, codes)) return null;
    throw error;
  });

/** Whether there is a file in the folder, at any depth. It stops at the first one, as there may be a million. */
export function hasFiles(folder: string): boolean {
  if (!existsSync(folder)) return false;
  using entries = openFolder(folder);
  for (let entry = entries.readSync(); entry !== null; entry = entries.readSync()) {
    if (entry.isDirectory() ? hasFiles(join(folder, entry.name)) : entry.isFile()) return true;
  }
  return false;
}

/** Opens a folder. An error names it, which Node.js leaves out here. */
function openFolder(path: string): Dir {
  try {
    return opendirSync(path);
  } catch (error) {
    (error as Error).message += ` '${path}'`;
    throw error;
  }
}

/** The mode of files. Other users must not read what clients send. */
export const FILE_MODE = 0o600;
export const FOLDER_MODE = 0o700;

/** Returns whether the mode gives other users any right. */
export const isOpenToOthers = async (path: string): Promise<boolean> =>
  ((await stat(path)).mode & 0o077) !== 0;

/**
 * Removes the rights that an older version gave to other users. The folder itself comes last, so a closed one shows
 * that the work is complete.
 */
export async function closeToOthers(folder: string): Promise<void> {
  if (!(await isOpenToOthers(folder))) return;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    await orNull(chmod(path, entry.isDirectory() ? FOLDER_MODE : FILE_MODE), "ENOENT");
  }
  await chmod(folder, FOLDER_MODE);
}

/** Creates a folder durably. `all` also creates the missing folders above it. */
export async function makeFolder(path: string, which: "all" | "last" = "all"): Promise<void> {
  const recursive = which === "all";
  // Another server that starts on the same folder may make it first.
  const topmost = await mkdir(path, { recursive, mode: FOLDER_MODE }).catch((error: unknown) => {
    if (!hasCode(error, ["EEXIST"]) || !isFolder(path)) throw error;
    return undefined;
  });
  const highest = recursive ? topmost : path;
  if (highest !== undefined) await syncFoldersAbove(path, dirname(highest));
}

const isFolder = (path: string) =>
  statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;

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

/** Renames a file and creates the target folder. The name of that folder is not durable yet. */
export async function moveInto(from: string, to: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await rename(from, to);
      return;
    } catch (error) {
      // The folder does not exist yet, or a delete has removed it while it was empty.
      if (!hasCode(error, ["ENOENT"]) || attempt === MOVE_ATTEMPTS) throw error;
      await mkdir(dirname(to), { recursive: true, mode: FOLDER_MODE });
    }
  }
}

/** Removes `from` and the empty folders above it, below `root`. `onRemoving` gets each folder before its removal. */
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

/**
 * The number of entries that one call reads. A folder may have 100,000 of them, and `readdir` takes 50 ms for as many.
 */
export const ENTRIES_PER_READ = 256;

/** Yields the entries of a folder; none for a missing folder. */
export async function* entriesOf(path: string): AsyncGenerator<Dirent> {
  const folder = await orNull(opendir(path, { bufferSize: ENTRIES_PER_READ }), "ENOENT", "ENOTDIR");
  if (folder !== null) yield* folder;
}

const REMOVE_ATTEMPTS = 6;
const REMOVED_AT_ONCE = 32;

/**
 * Removes a folder with its contents, a few files at a time. `fs.rm` blocks the event loop for 1 s with 100,000 files.
 */
export async function removeFolder(path: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    await emptyFolder(path);
    try {
      await orNull(rmdir(path), "ENOENT", "ENOTDIR");
      return;
    } catch (error) {
      // A new file has come, or the listing has missed one, because a folder may be read differently while it shrinks.
      if (!hasCode(error, ["ENOTEMPTY", "EEXIST"]) || attempt === REMOVE_ATTEMPTS) throw error;
    }
  }
}

/** Removes the contents of a folder. The folder stays, with its owner and its rights. */
export async function emptyFolder(path: string): Promise<void> {
  // Removals begin together, behind the listing: one that failed during a read of the folder would end the process.
  let entries: Dirent[] = [];
  for await (const entry of entriesOf(path)) {
    if (entries.push(entry) < REMOVED_AT_ONCE) continue;
    await Promise.all(entries.map(removeEntry));
    entries = [];
  }
  await Promise.all(entries.map(removeEntry));
}

function removeEntry(entry: Dirent): Promise<unknown> {
  const path = join(entry.parentPath, entry.name);
  return entry.isDirectory() ? removeFolder(path) : orNull(unlink(path), "ENOENT");
}

type Written = Pick<FileHandle, "appendFile"> & {
  writev(pieces: readonly Uint8Array[]): Promise<{ readonly bytesWritten: number }>;
};

/** Writes all pieces in one call. Resolves to the number of bytes. */
export async function writeAll(file: Written, pieces: readonly Uint8Array[]): Promise<number> {
  const bytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  if (bytes === 0) return 0;
  const { bytesWritten } = await file.writev(pieces);
  if (bytesWritten < bytes) {
    await file.appendFile(Buffer.concat(pieces).subarray(bytesWritten));
  }
  return bytes;
}

let streamCount = 0;

const writeBytes = () =>
  Math.min(MAX_WRITE_BYTES, Math.max(MIN_WRITE_BYTES, WRITES_BYTES / streamCount));

/** Writes a stream, and reads the next bytes during each write. Resolves to the number of bytes. */
export async function writeStream(
  file: Written,
  source: AsyncIterable<Uint8Array>,
): Promise<number> {
  let bytes = 0;
  let gathered: Uint8Array[] = [];
  let gatheredBytes = 0;
  let writing: Promise<unknown> = Promise.resolve();
  streamCount++;
  try {
    for await (const piece of source) {
      gathered.push(piece);
      gatheredBytes += piece.byteLength;
      if (gatheredBytes < writeBytes()) continue;
      await writing;
      writing = writeAll(file, gathered);
      // The next `await` reports a failed write. Without this handler, the rejection would end the process before.
      writing.catch(() => {});
      bytes += gatheredBytes;
      gathered = [];
      gatheredBytes = 0;
    }
  } finally {
    streamCount--;
    await writing;
  }
  await writeAll(file, gathered);
  return bytes + gatheredBytes;
}
