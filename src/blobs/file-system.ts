/**
 * The few file operations that disk.ts is made of. A new name is durable only when its folder
 * has been synced, and a new folder only when its parent has.
 */
import type { Dirent } from "node:fs";
import { type FileHandle, mkdir, open, readdir, rename, rmdir } from "node:fs/promises";
import { dirname, sep } from "node:path";

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

/** Creates the folder, and those above it, durably. */
export async function makeFolder(path: string): Promise<void> {
  const topmost = await mkdir(path, { recursive: true });
  if (topmost === undefined) return;
  const last = dirname(topmost);
  for (let folder = dirname(path); folder.length >= last.length; folder = dirname(folder)) {
    await syncFolder(folder);
    if (folder === last) return;
  }
}

export async function syncFolder(path: string): Promise<void> {
  await using folder = await open(path, "r");
  await folder.sync();
}

/** Renames a file, creating the folder it goes to. */
export async function moveInto(from: string, to: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await rename(from, to);
      return;
    } catch (error) {
      // There is no such folder yet, or a delete has taken it away while it was still empty.
      if (!hasCode(error, ["ENOENT"]) || attempt === MOVE_ATTEMPTS) throw error;
      await makeFolder(dirname(to));
    }
  }
}

/** Removes `from` and the folders above it, up to `root`, as far as they are empty. */
export async function removeEmptyFolders(from: string, root: string): Promise<void> {
  for (let folder = from; folder.startsWith(root + sep); folder = dirname(folder)) {
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

/** The entries of a folder; none when there is no such folder. */
export const readFolder = async (path: string): Promise<Dirent[]> =>
  (await orNull(readdir(path, { withFileTypes: true }), "ENOENT", "ENOTDIR")) ?? [];

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
