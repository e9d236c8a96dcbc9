/**
 * A folder that is open, and what is in it by name. Everything below a location is reached through these, one part of a
 * path at a time. So a folder that somebody replaces by a symbolic link meanwhile leads nowhere else.
 *
 * Every step has its turn (`operations.ts`), because a share may not answer any more.
 *
 * Linux resolves `/proc/self/fd/N/name` relative to the open folder itself (Node has no `openat`). Other systems resolve
 * the path anew, and a link that appears between two steps is followed there.
 */
import { constants, type Dirent } from "node:fs";
import { type FileHandle, mkdir, open, opendir, rename, rmdir, unlink } from "node:fs/promises";
import { join } from "node:path";
import { ENTRIES_PER_READ, orNull } from "../../blobs/file-system.ts";
import { OpenFile, type Operations } from "./operations.ts";

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;
const HAS_PROC = process.platform === "linux";
/** What the umask leaves of them: people read the results. */
const FILE_MODE = 0o666;
const FOLDER_MODE = 0o777;

export class OpenFolder implements AsyncDisposable {
  readonly #handle: FileHandle;
  readonly #path: string;
  readonly #operations: Operations;

  private constructor(handle: FileHandle, path: string, operations: Operations) {
    this.#handle = handle;
    this.#operations = operations;
    this.#path = HAS_PROC ? `/proc/self/fd/${handle.fd}` : path;
  }

  /** Opens the folder of a location. The operator has named it, so it may be a link. */
  static async root(path: string, operations: Operations): Promise<OpenFolder> {
    const handle = await opened(operations, path, O_RDONLY | O_DIRECTORY);
    return new OpenFolder(handle, path, operations);
  }

  /** Opens a folder in this one; null if there is none. Rejects for a file or a link. */
  async enter(name: string): Promise<OpenFolder | null> {
    const path = this.#pathOf(name);
    const opening = opened(this.#operations, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    const handle = await orNull(opening, "ENOENT");
    return handle === null ? null : new OpenFolder(handle, path, this.#operations);
  }

  /** Opens a folder in this one, and makes a missing one durably. */
  async enterOrMake(name: string): Promise<OpenFolder> {
    const making = this.#operations.run(() => mkdir(this.#pathOf(name), FOLDER_MODE));
    const made = await orNull(
      making.then(() => true),
      "EEXIST",
    );
    if (made !== null) await this.sync();
    const folder = await this.enter(name);
    if (folder === null) throw Object.assign(new Error(`${name} vanished`), { code: "ENOENT" });
    return folder;
  }

  /**
   * Opens a file for reading; null if there is none. It may turn out to be anything but a link. The open of a pipe does
   * not wait for its writer.
   */
  async openFile(name: string): Promise<OpenFile | null> {
    const flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
    const handle = await orNull(opened(this.#operations, this.#pathOf(name), flags), "ENOENT");
    return handle === null ? null : new OpenFile(handle, this.#operations);
  }

  /** Whether a folder in this one was last changed before a time; false if there is none. */
  async changedBefore(name: string, timeMs: number): Promise<boolean> {
    await using folder = await this.enter(name);
    if (folder === null) return false;
    return (await this.#operations.run(() => folder.#handle.stat())).mtimeMs < timeMs;
  }

  async createFile(name: string): Promise<OpenFile> {
    const flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    const handle = await opened(this.#operations, this.#pathOf(name), flags, FILE_MODE);
    return new OpenFile(handle, this.#operations);
  }

  async *list(): AsyncGenerator<Dirent> {
    const operations = this.#operations;
    const options = { bufferSize: ENTRIES_PER_READ };
    const opening = operations.run(
      () => opendir(`${this.#path}/`, options),
      (late) => late.close(),
    );
    const entries = await orNull(opening, "ENOENT", "ENOTDIR");
    if (entries === null) return;
    try {
      for (;;) {
        const entry = await operations.run(() => entries.read());
        if (entry === null) return;
        yield entry;
      }
    } finally {
      await operations.close(entries);
    }
  }

  /** Renames something in this folder to a name in `target`, which may be this folder. */
  move(name: string, target: OpenFolder, newName: string): Promise<void> {
    return this.#operations.run(() => rename(this.#pathOf(name), target.#pathOf(newName)));
  }

  async removeFile(name: string): Promise<void> {
    await orNull(
      this.#operations.run(() => unlink(this.#pathOf(name))),
      "ENOENT",
    );
  }

  /**
   * Removes a folder and the files in it. It never follows a link. A folder in it is not one of batchd, as some storages make
   * their own everywhere (`@eaDir`): both stay.
   */
  async removeFolder(name: string): Promise<void> {
    {
      await using folder = await this.enter(name);
      if (folder === null) return;
      for await (const entry of folder.list()) {
        if (!entry.isDirectory()) await folder.removeFile(entry.name);
      }
    }
    const removing = this.#operations.run(() => rmdir(this.#pathOf(name)));
    await orNull(removing, "ENOENT", "ENOTEMPTY", "EEXIST");
  }

  sync(): Promise<void> {
    return this.#operations.run(() => this.#handle.sync());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#operations.close(this.#handle);
  }

  #pathOf(name: string): string {
    if (name.includes("/") || name === "..") throw new Error(`not a name: ${name}`);
    return HAS_PROC ? `${this.#path}/${name}` : join(this.#path, name);
  }
}

const opened = (operations: Operations, path: string, flags: number, mode?: number) =>
  operations.run(
    () => open(path, flags, mode),
    (late) => late.close(),
  );
