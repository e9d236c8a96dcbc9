/**
 * Stores blobs as files under one folder, which one process owns or several share.
 *
 * A blob is written under a temporary name in `.tmp/` and synced. Then it is renamed to its key, and its folder is
 * synced. The order must stay. After a crash a key names all of its bytes or does not exist, and a resolved `put`
 * survives a power cut. No part of a key begins with a dot, so a key cannot reach `.tmp/` or a place outside the folder.
 *
 * The only owner of a folder removes the remains of a crash from `.tmp/` when it opens the folder. In a shared folder
 * they may be blobs that others are writing. A temporary name therefore contains the key, and the sweep removes the
 * names whose keys are garbage.
 */
import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { type FileHandle, open, rm, stat, unlink, writeFile } from "node:fs/promises";
import { dirname, join, resolve, sep } from "node:path";
import { Readable } from "node:stream";
import { Semaphore } from "../resources/semaphore.ts";
import {
  assertKey,
  assertPrefix,
  type BlobInfo,
  BlobNotFound,
  type BlobPart,
  type Blobs,
  BlobsUnavailable,
  BlobTooShort,
  type ByteRange,
  type FindGarbage,
  type WriteHints,
} from "./blobs.ts";
import {
  assertRoom,
  closeToOthers,
  emptyFolder,
  entriesOf,
  FILE_MODE,
  hasCode,
  makeFolder,
  moveInto,
  orNull,
  removeEmptyFolders,
  removeFolder,
  syncFolder,
  syncFoldersAbove,
  writeAll,
  writeStream,
} from "./file-system.ts";

/**
 * Each reading holds a piece or two while its reader is slow, and there may be thousands of downloads. So the pieces get shorter
 * the more readings there are: all together hold some megabytes, and each at least a short piece.
 */
const MAX_PIECE_BYTES = 512 * 1024;
const MIN_PIECE_BYTES = 16 * 1024;
const PIECES_BYTES = 8 * 1024 * 1024;

const TEMPORARY = ".tmp";
/** A write costs some syncs, which take milliseconds. */
const WRITE_HINTS: WriteHints = { minIntervalMs: 80, fullBytes: 1024 * 1024 };
const WHOLE: ByteRange = { start: 0, end: Number.POSITIVE_INFINITY };
const DELETED_AT_ONCE = 32;
/** The codes of a process that can open no file, which say nothing about the folder. */
const NO_DESCRIPTOR = ["EMFILE", "ENFILE"];
const LOOKUP_PAGE = 500;
/**
 * The sync of a large file may take seconds on a slow disk, and Node has four threads for all files. Large files that are complete
 * at the same moment would take all of them, and whatever needs a file would wait.
 */
const LONG_SYNCS = 2;
const LONG_SYNC_BYTES = 16 * 1024 * 1024;

export interface DiskOptions {
  /** Whether other processes write to the folder at the same time. */
  readonly isShared: boolean;
}

/** Whether {@link openDiskBlobs} has had the folder. An empty mount point is another one. */
export const wasOpened = (root: string): boolean => existsSync(join(root, TEMPORARY));

/** Opens the folder, and creates a missing one. */
export async function openDiskBlobs(
  root: string,
  options: DiskOptions = { isShared: false },
): Promise<DiskBlobs> {
  const folder = resolve(root);
  // An operator who is root may run a command here, so the folder itself stays: a new one would shut its server out.
  if (!options.isShared) await emptyFolder(join(folder, TEMPORARY));
  await makeFolder(join(folder, TEMPORARY));
  await closeToOthers(folder);
  return new DiskBlobs(folder, options);
}

export class DiskBlobs implements Blobs {
  readonly writeHints = WRITE_HINTS;
  readonly heldByPutBytes = 0;
  readonly maxReadsAhead = 0;
  readonly mayBeBehind: boolean;
  readonly #root: string;
  readonly #isShared: boolean;
  /**
   * The folders whose own names are durable. A folder that may be removed must not be here, so the set stays empty
   * while other processes remove folders too.
   */
  readonly #durableFolders = new Set<string>();
  #readingCount = 0;
  readonly #longSyncs = new Semaphore(LONG_SYNCS);

  /** Callers use {@link openDiskBlobs}. */
  constructor(root: string, { isShared }: DiskOptions) {
    this.#root = root;
    this.#isShared = isShared;
    this.mayBeBehind = isShared;
  }

  async put(key: string, source: AsyncIterable<Uint8Array>): Promise<{ bytes: number }> {
    let bytes = 0;
    await this.#publish(key, async (file) => {
      bytes = await writeStream(file, source);
      return bytes;
    });
    return { bytes };
  }

  /** The bytes pass through the process in any case, to be checked. */
  join(
    key: string,
    _parts: readonly BlobPart[],
    content: AsyncIterable<Uint8Array>,
  ): Promise<{ bytes: number }> {
    return this.put(key, content);
  }

  async putBytes(key: string, bytes: readonly Uint8Array[]): Promise<void> {
    await this.#publish(key, (file) => writeAll(file, bytes));
  }

  read(key: string, range?: ByteRange): Readable {
    // The first read opens the file and the stream closes it, so an unread stream holds no descriptor.
    const chunks = this.#chunksOf(key, range);
    // One piece is read ahead, however short it is.
    return Readable.from(chunks, { objectMode: false, highWaterMark: 1 });
  }

  async readRange(key: string, { start, end }: ByteRange): Promise<Buffer> {
    await using file = await this.#open(key);
    const buffer = Buffer.allocUnsafe(end - start);
    // A share may return less than it has.
    for (let at = 0, bytesRead = 0; at < buffer.length; at += bytesRead) {
      bytesRead = await this.#readAt(start + at, { file, buffer: buffer.subarray(at) });
      if (bytesRead === 0) throw new BlobTooShort(key, end);
    }
    return buffer;
  }

  async linkTo(): Promise<null> {
    return null;
  }

  async *list(prefix: string): AsyncIterable<BlobInfo> {
    const folder = prefix === "" ? this.#root : this.#folderOf(prefix);
    for await (const entry of entriesOf(folder)) {
      if (entry.name.startsWith(".")) continue;
      if (entry.isDirectory()) yield* this.list(`${prefix}${entry.name}/`);
      else {
        const found = await orNull(stat(join(folder, entry.name)), "ENOENT");
        if (found !== null) yield { key: prefix + entry.name, bytes: found.size };
      }
    }
  }

  async delete(...keys: readonly string[]): Promise<void> {
    const paths = keys.map((key) => this.#pathOf(key));
    for (let at = 0; at < paths.length; at += DELETED_AT_ONCE) {
      const group = paths.slice(at, at + DELETED_AT_ONCE);
      await Promise.all(group.map((path) => orNull(unlink(path), "ENOENT", "ENOTDIR")));
    }
    for (const folder of new Set(paths.map(dirname))) await this.#removeEmptyFolders(folder);
  }

  async deleteAll(prefix: string): Promise<void> {
    const folder = this.#folderOf(prefix);
    for (const each of this.#durableFolders) {
      if (each === folder || each.startsWith(folder + sep)) this.#durableFolders.delete(each);
    }
    await removeFolder(folder);
    await this.#removeEmptyFolders(dirname(folder));
  }

  async removeUnfinished(findGarbage: FindGarbage): Promise<void> {
    const folder = join(this.#root, TEMPORARY);
    let names: string[] = [];
    const removePage = async () => {
      const garbage = new Set(await findGarbage([...new Set(names.map(keyOfTemporary))]));
      const dead = names.filter((name) => garbage.has(keyOfTemporary(name)));
      await Promise.all(dead.map((name) => orNull(unlink(join(folder, name)), "ENOENT")));
      names = [];
    };
    for await (const { name } of entriesOf(folder)) {
      if (names.push(name) === LOOKUP_PAGE) await removePage();
    }
    await removePage();
  }

  async ping(): Promise<void> {
    const path = join(this.#root, temporaryFor(PING));
    try {
      await writeFile(path, "ping", { flag: "wx", mode: FILE_MODE });
    } finally {
      await orNull(unlink(path), "ENOENT");
    }
  }

  async *#chunksOf(key: string, range: ByteRange = WHOLE): AsyncGenerator<Buffer> {
    let last: Buffer | null = null;
    {
      await using file = await this.#open(key);
      let at = range.start;
      this.#readingCount++;
      try {
        while (at < range.end) {
          const buffer = Buffer.allocUnsafeSlow(Math.min(this.#pieceBytes, range.end - at));
          const bytesRead = await this.#readAt(at, { file, buffer });
          if (bytesRead === 0) break;
          at += bytesRead;
          const piece = buffer.subarray(0, bytesRead);
          if (at === range.end) last = piece;
          else yield piece;
        }
      } finally {
        this.#readingCount--;
      }
      if (Number.isFinite(range.end) && at < range.end) throw new BlobTooShort(key, range.end);
    }
    // The file is closed by now. A client of a download may close with the last byte, and nothing may be left to wait for then.
    if (last !== null) yield last;
  }

  get #pieceBytes(): number {
    const fairBytes = Math.floor(PIECES_BYTES / this.#readingCount);
    return Math.min(MAX_PIECE_BYTES, Math.max(MIN_PIECE_BYTES, fairBytes));
  }

  async #open(key: string): Promise<FileHandle> {
    const opening = orNull(open(this.#pathOf(key), "r"), "ENOENT", "ENOTDIR");
    const file = await opening.catch((cause: unknown) => this.#failRead(cause));
    if (file !== null) return file;
    throw wasOpened(this.#root) ? new BlobNotFound(key) : this.#away();
  }

  async #readAt(
    position: number,
    { file, buffer }: { readonly file: FileHandle; readonly buffer: Buffer },
  ): Promise<number> {
    const reading = file.read(buffer, 0, buffer.length, position);
    return (await reading.catch((cause: unknown) => this.#failRead(cause))).bytesRead;
  }

  /**
   * Throws the error of a read. A folder that takes no new file either is away as a whole, such as a share whose server is gone:
   * then no blob is at fault, and its batch must not be given up.
   */
  async #failRead(cause: unknown): Promise<never> {
    if (!hasCode(cause, NO_DESCRIPTOR)) {
      await this.ping().catch(() => {
        throw this.#away(cause);
      });
    }
    throw cause;
  }

  async #create(temporary: string): Promise<FileHandle> {
    try {
      return await open(temporary, "wx", FILE_MODE);
    } catch (cause) {
      const isAway = hasCode(cause, ["ENOENT", "ENOTDIR"]) || !wasOpened(this.#root);
      throw isAway && !hasCode(cause, NO_DESCRIPTOR) ? this.#away(cause) : cause;
    }
  }

  /** The error for a folder that cannot be used, such as a disk that is not mounted. */
  #away(cause?: unknown): BlobsUnavailable {
    const options = { isRefusal: false, ...(cause !== undefined && { cause }) };
    return new BlobsUnavailable(`the folder ${this.#root} is away`, options);
  }

  async #publish(key: string, write: (file: FileHandle) => Promise<number>): Promise<void> {
    const path = this.#pathOf(key);
    const temporary = join(this.#root, temporaryFor(key));
    try {
      await using file = await this.#create(temporary);
      const bytes = await write(file);
      if (bytes < LONG_SYNC_BYTES) await file.sync();
      else await this.#longSyncs.run(() => file.sync());
      // The database of a shared folder is elsewhere.
      if (!this.#isShared) await assertRoom(this.#root);
      await moveInto(temporary, path);
    } catch (error) {
      // The next start, or the sweep, removes what is left of a folder that is away.
      await rm(temporary, { force: true }).catch(() => {});
      throw error;
    }
    await syncFolder(dirname(path));
    await this.#makeDurable(dirname(path));
  }

  /**
   * Makes the name of a folder durable. Another `put` may have created the folder without having synced the one above
   * it yet, so no `put` may rely on another one.
   */
  async #makeDurable(folder: string): Promise<void> {
    if (folder === this.#root || this.#durableFolders.has(folder)) return;
    await syncFoldersAbove(folder, this.#root);
    // The folder cannot have been removed since, because the new blob is in it.
    if (!this.#isShared) this.#durableFolders.add(folder);
  }

  async #removeEmptyFolders(from: string): Promise<void> {
    await removeEmptyFolders(from, this.#root, (folder) => this.#durableFolders.delete(folder));
  }

  #pathOf(key: string): string {
    assertKey(key);
    return join(this.#root, key);
  }

  #folderOf(prefix: string): string {
    assertPrefix(prefix);
    return join(this.#root, prefix.slice(0, -1));
  }
}

/** The key of the probe that {@link DiskBlobs.ping} writes. No row ever names it. */
const PING = "ping";
/** This character is in no key, and stands for `/` in temporary names. */
const SEPARATOR = "+";

const temporaryFor = (key: string): string =>
  join(TEMPORARY, [...key.split("/"), randomUUID()].join(SEPARATOR));

const keyOfTemporary = (name: string): string => name.split(SEPARATOR).slice(0, -1).join("/");
