import { spawnSync } from "node:child_process";
import { closeSync, mkdirSync, openSync, rmSync, statfsSync, writeSync } from "node:fs";
import { join } from "node:path";

/** Mounts a file system of `bytes` at the path. Returns null where this process may not mount one. */
export function mountSmallDisk(path: string, bytes: number): Disposable | null {
  mkdirSync(path, { recursive: true });
  const { status } = spawnSync("mount", ["-t", "tmpfs", "-o", `size=${bytes}`, "none", path]);
  if (status !== 0) return null;
  return { [Symbol.dispose]: () => void spawnSync("umount", ["--lazy", path]) };
}

const PIECE = Buffer.alloc(64 * 1024);

/** Takes the room of a small disk, and gives it back. */
export class Ballast {
  readonly #folder: string;
  readonly #path: string;
  isThere = false;

  /** The folder is where the disk is mounted. */
  constructor(folder: string) {
    this.#folder = folder;
    this.#path = join(folder, "ballast");
  }

  /** Leaves so many bytes. A server may take some of them meanwhile. */
  fillBut(leftBytes: number): void {
    const { bavail, bsize } = statfsSync(this.#folder);
    this.isThere = true;
    const file = openSync(this.#path, "a");
    try {
      for (let bytes = bavail * bsize - leftBytes; bytes > 0; bytes -= PIECE.length) {
        writeSync(file, PIECE, 0, Math.min(PIECE.length, bytes));
      }
    } catch {
      // The disk is full.
    }
    closeSync(file);
  }

  remove(): void {
    this.isThere = false;
    rmSync(this.#path, { force: true });
  }
}
