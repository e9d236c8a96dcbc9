/** Programs of this machine that some tests need beside npm packages. `npm run programs` installs them. */
import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";

export function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** Returns the path of a program, null when there is none. Debian keeps servers out of the `PATH` of users. */
export function findProgram(name: string): string | null {
  const folders = [...(process.env["PATH"] ?? "").split(delimiter), "/usr/sbin"];
  return folders.map((folder) => join(folder, name)).find(isExecutable) ?? null;
}

/** Says that tests are left out because of what is missing. CI must have all of it, so there it throws. */
export function leaveOut(tests: string, missing: string): false {
  const text = `LEFT OUT: ${tests}. This machine lacks ${missing}`;
  if (process.env["CI"]) throw new Error(text);
  process.stderr.write(`\n${text}\n\n`);
  return false;
}

/** Returns whether `tests` can use a program. */
export const hasProgram = (name: string, tests: string): boolean =>
  findProgram(name) !== null || leaveOut(tests, `${name}: \`npm run programs\` installs it`);

/** Returns whether `tests` can see the system calls of a process: some containers forbid it. */
export const canTrace = (tests: string): boolean =>
  spawnSync("strace", ["-f", "-e", "trace=fdatasync", "true"]).status === 0 ||
  leaveOut(tests, "strace, and the right to use it: `npm run programs` installs it");
