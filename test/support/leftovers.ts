/** Ends what a test has started, however the test ends: one that timed out never reaches its own end. */
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { onTestFinished } from "vitest";

/** Processes that run, which must not outlive the process of the tests either. */
const running = new Set<ChildProcess>();

process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** Calls `end` when the test is over, in whichever way. In a hook there is no test: then its own end has to do. */
export function atTestEnd(end: () => unknown): void {
  try {
    onTestFinished(async () => {
      await end();
    });
  } catch {
    // Started in a hook, for all tests of a file.
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
