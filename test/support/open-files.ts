import { readdirSync, readlinkSync } from "node:fs";

/** How many descriptors of this process are open on paths that end so. Linux only. */
export function openCount(pathEnd: string): number {
  let count = 0;
  for (const descriptor of readdirSync("/proc/self/fd")) {
    try {
      if (readlinkSync(`/proc/self/fd/${descriptor}`).endsWith(pathEnd)) count++;
    } catch {
      // Closed since the folder was read.
    }
  }
  return count;
}
