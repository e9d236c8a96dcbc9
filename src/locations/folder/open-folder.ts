/**
 * A folder that is open, and what is in it by name. Everything below a location is reached through these, one part of a
 * path at a time. So a folder that somebody replaces by a symbolic link meanwhile leads nowhere else.
 *
 * Linux resolves `/proc/self/fd/N/name` relative to the open folder itself (Node has no `openat`). Other systems resolve
 * the path anew, and a link that appears between two steps is followed there.
 */
import { constants, type Dirent } from "node:fs";
import { type FileHandle, mkdir, open, rename, rmdir, unlink } from "node:fs/promises";
import { join } from "node:path";
import { entriesOf, orNull } from "../../blobs/file-system.ts";

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;
const HAS_PROC = process.platform === "linux";
/** What the umask leaves of them: people read the results. */
const FILE_MODE = 0o666;
const FOLDER_MODE = 0o777;

export class OpenFolder implements AsyncDisposable {
  readonly #handle: FileHandle;
  readonly #path: string;

  private constructor(handle: FileHandle, path: string) {
    this.#handle = handle;
    this.#path = HAS_PROC ? `/proc/self/fd/${handle.fd}` : path;
  }

  /** Opens the folder of a location. The operator has named it, so it may be a link. */
  static async root(path: string): Promise<OpenFolder> {
    return new OpenFolder(await open(path, O_RDONLY | O_DIRECTORY), path);
  }

  /** Opens a folder in this one; null if there is none. Rejects for a file or a link. */
  async enter(name: string): Promise<OpenFolder | null> {
    const path = this.#pathOf(name);
    const handle = await orNull(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW), "ENOENT");
    return handle === null ? null : new OpenFolder(handle, path);
  }

  /** Opens a folder in this one, and makes a missing one durably. */
  async enterOrMake(name: string): Promise<OpenFolder> {
    const made = await orNull(mkdir(this.#pathOf(name), FOLDER_MODE), "EEXIST");
    if (made !== null) await this.sync();
    const folder = await this.enter(name);
    if (folder === null) throw Object.assign(new Error(`${name} vanished`), { code: "ENOENT" });
    return folder;
  }

  /**
   * Opens a file for reading; null if there is none. It may turn out to be anything but a link. The open of a pipe does
   * not wait for its writer.
   */
  openFile(name: string): Promise<FileHandle | null> {
    return orNull(open(this.#pathOf(name), O_RDONLY | O_NOFOLLOW | O_NONBLOCK), "ENOENT");
  }

  /** Whether a folder in this one was last changed before a time; false if there is none. */
  async changedBefore(name: string, timeMs: number): Promise<boolean> {
    await using folder = await this.enter(name);
    return folder !== null && (await folder.#handle.stat()).mtimeMs < timeMs;
  }

  createFile(name: string): Promise<FileHandle> {
    return open(this.#pathOf(name), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, FILE_MODE);
  }

  list(): AsyncIterable<Dirent> {
    return entriesOf(`${this.#path}/`);
  }

  /** Renames something in this folder to a name in `target`, which may be this folder. */
  move(name: string, target: OpenFolder, newName: string): Promise<void> {
    return rename(this.#pathOf(name), target.#pathOf(newName));
  }

  async removeFile(name: string): Promise<void> {
    await orNull(unlink(this.#pathOf(name)), "ENOENT");
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
    await orNull(rmdir(this.#pathOf(name)), "ENOENT", "ENOTEMPTY", "EEXIST");
  }

  sync(): Promise<void> {
    return this.#handle.sync();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#handle.close();
  }

  #pathOf(name: string): string {
    if (name.includes("/") || name === "..") throw new Error(`not a name: ${name}`);
    return HAS_PROC ? `${this.#path}/${name}` : join(this.#path, name);
  }
}
