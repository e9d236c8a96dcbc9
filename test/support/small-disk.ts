import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";

/** Mounts a file system of `bytes` at the path. Returns null where this process may not mount one. */
export function mountSmallDisk(path: string, bytes: number): Disposable | null {
  mkdirSync(path, { recursive: true });
  const { status } = spawnSync("mount", ["-t", "tmpfs", "-o", `size=${bytes}`, "none", path]);
  if (status !== 0) return null;
  return { [Symbol.dispose]: () => void spawnSync("umount", ["--lazy", path]) };
}
