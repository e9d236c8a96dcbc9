import { readdirSync, readlinkSync } from "node:fs";

/** Counts the open descriptors of this process whose path ends in `pathEnd`. Linux only. */
export function openCount(pathEnd: string): number {
  let count = 0;
  for (const descriptor of readdirSync("/proc/self/fd")) {
    try {
      if (readlinkSync(`/proc/self/fd/${descriptor}`).endsWith(pathEnd)) count++;
    } catch {
      // The descriptor was closed after the folder was read.
    }
  }
  return count;
}
