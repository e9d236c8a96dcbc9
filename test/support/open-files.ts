import { readdirSync, readlinkSync } from "node:fs";

/** Counts the open descriptors of a process, this one unless another is named, whose path ends in `pathEnd`. Linux only. */
export function openCount(pathEnd: string, pid: number | "self" = "self"): number {
  let count = 0;
  for (const descriptor of readdirSync(`/proc/${pid}/fd`)) {
    try {
      if (readlinkSync(`/proc/${pid}/fd/${descriptor}`).endsWith(pathEnd)) count++;
    } catch {
      // The descriptor was closed after the folder was read.
    }
  }
  return count;
}
