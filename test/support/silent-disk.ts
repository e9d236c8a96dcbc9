/** A disk that can stop answering writes, as a share does whose server is away: what writes to it waits until it goes on. */
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { atTestEnd } from "./leftovers.ts";

const BYTES = 16 * 1024 * 1024;

export interface SilentDisk {
  readonly path: string;
  silence(): void;
  goOn(): void;
}

/** Mounts one for the test. Returns null where this process may not mount one. */
export function mountSilentDisk(): SilentDisk | null {
  const root = mkdtempSync(join(tmpdir(), "batchd-silent-"));
  const [image, path] = [join(root, "image"), join(root, "disk")];
  const run = (program: string, ...args: string[]) => spawnSync(program, args).status === 0;
  const goOn = () => void run("fsfreeze", "--unfreeze", path);
  mkdirSync(path);
  writeFileSync(image, "");
  truncateSync(image, BYTES);
  const isMounted = run("mkfs.ext4", "-q", image) && run("mount", "-o", "loop", image, path);
  atTestEnd(() => {
    goOn();
    run("umount", "--lazy", path);
    rmSync(root, { recursive: true, force: true });
  });
  return isMounted ? { path, silence: () => void run("fsfreeze", "--freeze", path), goOn } : null;
}
