/** What a process holds in memory, as Linux counts it. */
import { readFileSync } from "node:fs";

/** The most it ever held: nothing between two looks can be missed. */
export function peakResidentBytes(pid: number): number {
  const kibibytes = /^VmHWM:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  if (kibibytes === undefined) throw new Error(`process ${pid} has no VmHWM`);
  return Number(kibibytes) * 1024;
}
