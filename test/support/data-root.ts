/**
 * Says where tests put data that end with them: in memory where there is room for it, so that no commit and no file
 * waits for a disk. Thousands of tests begin with a server and a database of their own, and each commit is synced.
 *
 * A server that a test kills, and a disk that it fills, keep their data on the disk, and `crash/synced.test.ts` holds
 * what is synced and when.
 */
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const MEMORY = "/dev/shm";
/** It is many times what all tests have there at once. A container often has less, and uses its disk. */
const ROOM_BYTES = 4 * 1024 ** 3;

/** The number in the name is the process that made the folder. */
const MADE_BY = /^batchd-tests-(\d+)-/;
/** The folder that this process has made; null when it has made none. */
let made: string | null = null;

/** Makes the folder of a run and names it to the processes of the tests. */
export function setup(): void {
  if (process.env["BATCHD_TEST_DATA"] !== undefined || !existsSync(MEMORY)) return;
  removeAbandoned();
  if (!hasRoom()) return;
  made = mkdtempSync(join(MEMORY, `batchd-tests-${process.pid}-`));
  // A server of PostgreSQL runs as another user, in a folder of its own.
  chmodSync(made, 0o711);
  process.env["BATCHD_TEST_DATA"] = made;
}

/** Removes the folder, and with it what a process that was killed has left there. */
export function teardown(): void {
  if (made === null) return;
  delete process.env["BATCHD_TEST_DATA"];
  // The servers of PostgreSQL are about to end, and may still write.
  rmSync(made, { recursive: true, force: true, maxRetries: 10 });
}

/** Removes the folders of runs that were killed, because memory stays taken until they are gone. */
function removeAbandoned(): void {
  for (const name of readdirSync(MEMORY)) {
    const pid = MADE_BY.exec(name)?.[1];
    if (pid === undefined || existsSync(`/proc/${pid}`)) continue;
    rmSync(join(MEMORY, name), { recursive: true, force: true });
  }
}

function hasRoom(): boolean {
  try {
    const { bavail, bsize } = statfsSync(MEMORY);
    return Math.min(bavail * bsize, process.availableMemory()) > ROOM_BYTES;
  } catch {
    return false;
  }
}

export const dataRoot = (): string => process.env["BATCHD_TEST_DATA"] ?? tmpdir();
