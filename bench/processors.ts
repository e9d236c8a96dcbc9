/** Reads from Linux how much processor time the bench and all of its processes have used. */
import { readdirSync, readFileSync } from "node:fs";

/** Linux counts in ticks of so many a second, whatever the machine. */
const TICKS_PER_SECOND = 100;
/** The columns of /proc/PID/stat after the name of the process. */
const PARENT = 1;
const TIMES = [11, 12, 13, 14];

interface ProcessTimes {
  readonly pid: number;
  readonly parent: number;
  /** They include the times of its children that have ended. */
  readonly ticks: number;
}

/** Returns the seconds that this process and its descendants have used so far. */
export function processorSeconds(): number {
  const all = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const processes = all.flatMap((name) => timesOf(Number(name)) ?? []);
  const ours = new Set([process.pid]);
  for (let before = 0; before < ours.size; ) {
    before = ours.size;
    for (const { pid, parent } of processes) if (ours.has(parent)) ours.add(pid);
  }
  const ticks = processes
    .filter(({ pid }) => ours.has(pid))
    .reduce((sum, each) => sum + each.ticks, 0);
  return ticks / TICKS_PER_SECOND;
}

function timesOf(pid: number): ProcessTimes | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // A name may contain spaces and parentheses.
    const columns = stat
      .slice(stat.lastIndexOf(")") + 2)
      .split(" ")
      .map(Number);
    const ticks = TIMES.reduce((sum, column) => sum + (columns[column] ?? 0), 0);
    return { pid, parent: columns[PARENT] ?? 0, ticks };
  } catch {
    // The process has ended.
    return null;
  }
}
