/** A share whose server never answers: every look at it waits until it is unmounted. Linux only, for root. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { atTestEnd, killAtTestEnd } from "./leftovers.ts";

/** A file system in user space without a program that serves it. It fails (`ENOTCONN`) once its holder ends. */
const MOUNT =
  'exec 9<>/dev/fuse && mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 silent "$0" && echo mounted && read -r _';

export interface DeadShare extends Disposable {
  readonly path: string;
}

/** Mounts one for the test. Returns null where this process may not mount one. */
export async function mountDeadShare(): Promise<DeadShare | null> {
  const root = mkdtempSync(join(tmpdir(), "batchd-dead-"));
  const path = join(root, "share");
  mkdirSync(path);
  const holder = spawn("sh", ["-c", MOUNT, path], { stdio: ["pipe", "pipe", "ignore"] });
  killAtTestEnd(holder);
  const end = () => {
    holder.kill("SIGKILL");
    spawnSync("umount", ["--lazy", path]);
    rmSync(root, { recursive: true, force: true });
  };
  atTestEnd(end);
  const said = await Promise.race([once(holder.stdout, "data"), once(holder, "close")]);
  const isMounted = String(said[0]).startsWith("mounted");
  return isMounted ? { path, [Symbol.dispose]: end } : null;
}
