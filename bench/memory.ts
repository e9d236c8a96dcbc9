/** Reads the memory of a process from Linux. */
import { readFileSync } from "node:fs";

/** Returns the peak since the start. The kernel keeps it, so no moment is missed. */
export const peakResidentBytes = (pid: number): number => bytesOf(pid, "VmHWM");

/** Returns the memory in use now. */
export const residentBytes = (pid: number): number => bytesOf(pid, "VmRSS");

function bytesOf(pid: number, name: string): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const kibibytes = new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(status)?.[1];
  if (kibibytes === undefined) throw new Error(`process ${pid} has no ${name}`);
  return Number(kibibytes) * 1024;
}
