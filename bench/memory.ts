/** What a process holds in memory, as Linux counts it. */
import { readFileSync } from "node:fs";

/** The most it ever held: nothing between two looks can be missed. */
export const peakResidentBytes = (pid: number): number => bytesOf(pid, "VmHWM");

/** What it holds now. */
export const residentBytes = (pid: number): number => bytesOf(pid, "VmRSS");

function bytesOf(pid: number, name: string): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const kibibytes = new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(status)?.[1];
  if (kibibytes === undefined) throw new Error(`process ${pid} has no ${name}`);
  return Number(kibibytes) * 1024;
}
