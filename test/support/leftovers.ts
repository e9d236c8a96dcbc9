/** Ends the servers and processes of a test, however the test ends. A test that times out never reaches its own end. */
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { onTestFinished } from "vitest";

/** The running processes. They must not outlive the process of the tests either. */
const running = new Set<ChildProcess>();

process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/**
 * Calls `end` after the test, whatever its result. A hook has no test, so code that calls this in a hook must also end
 * by itself.
 */
export function atTestEnd(end: () => unknown): void {
  try {
    onTestFinished(async () => {
      await end();
    });
  } catch {
    // A hook has started it for all tests of a file.
  }
}

export function killAtTestEnd(child: ChildProcess): void {
  running.add(child);
  child.once("exit", () => running.delete(child));
  atTestEnd(async () => {
    if (!running.has(child)) return;
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
  });
}
