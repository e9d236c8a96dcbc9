/**
 * Makes private folders for repositories that live as long as one call. Their names say which process made them, so the
 * next one on this machine removes those of a process that was killed.
 */
import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { entriesOf, removeFolder } from "../../blobs/file-system.ts";
import { lazy } from "../../lazy.ts";

const OWNER_ONLY = 0o700;
const BEGINNING = `batchd-git-${hostname().replaceAll(/[^A-Za-z0-9.]/g, "_")}-`;
/** The folders of this process, also those of other locations. A predecessor may have had the same number. */
const OWN = `${BEGINNING}${process.pid}-${randomBytes(8).toString("hex")}-`;

export interface WorkFolder extends AsyncDisposable {
  readonly path: string;
}

export class WorkFolders {
  readonly #above: string;
  readonly #cleaned = lazy(() => this.#removeDead());

  constructor(above: string) {
    this.#above = above;
  }

  async make(): Promise<WorkFolder> {
    await mkdir(this.#above, { recursive: true, mode: OWNER_ONLY });
    await this.#cleaned();
    // Only this user can enter it.
    const path = await mkdtemp(join(this.#above, OWN));
    return { path, [Symbol.asyncDispose]: () => removeFolder(path) };
  }

  /** Removes the folders of dead processes. */
  async #removeDead(): Promise<void> {
    for await (const { name, parentPath } of entriesOf(this.#above)) {
      if (!name.startsWith(BEGINNING) || name.startsWith(OWN)) continue;
      const pid = Number.parseInt(name.slice(BEGINNING.length), 10);
      if (pid !== process.pid && isAlive(pid)) continue;
      // A git that outlives its killed server may still write there. Then the next process removes it.
      await removeFolder(join(parentPath, name)).catch(() => {});
    }
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== "ESRCH";
  }
}
