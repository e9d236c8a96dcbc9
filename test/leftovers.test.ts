import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const FIXTURES = fileURLToPath(new URL("support/fixtures", import.meta.url));
const VITEST = fileURLToPath(new URL("../node_modules/vitest/vitest.mjs", import.meta.url));

const isRunning = (pid: number) => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

test("a test that times out leaves no process behind", async () => {
  const args = [VITEST, "run", "--root", FIXTURES];
  const failed = await promisify(execFile)(process.execPath, args).catch((error: unknown) => error);
  const { stdout, stderr } = failed as { stdout: string; stderr: string };
  expect(stdout + stderr).toContain("Test timed out in 1000ms");
  const pid = Number(/pid=(\d+)/.exec(stdout)?.[1]);
  expect(pid).toBeGreaterThan(0);
  expect(isRunning(pid)).toBe(false);
});
