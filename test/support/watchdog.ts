/**
 * Ends what hangs, and says where.
 *
 * A test whose time is over says which of its waits never ended (`waits.ts`).
 *
 * A test file whose event loop has stopped is ended. An endless loop fires no timer, so the timeout of its test never
 * comes, and vitest waits for ever. A separate thread notices that no turn ends, names the test, and kills the process.
 * vitest reports a failure and continues with the other files. A test may have the thread bound its work as a whole, too.
 */
import { Worker } from "node:worker_threads";
import { afterEach, beforeEach, expect, inject } from "vitest";
import { openWaits } from "./waits.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** The longest turn in processor time, which a busy machine does not lengthen. */
    maxTurnMs: number;
  }
}

const POLL_EVERY_MS = 1_000;

/** One for the process: several files run in it, one after the other, and each of them loads this file. */
const shared = globalThis as { watchdog?: Worker };
shared.watchdog ??= watch();
const watcher = shared.watchdog;

function watch(): Worker {
  const turns = new Int32Array(new SharedArrayBuffer(4));
  setInterval(() => Atomics.add(turns, 0, 1), POLL_EVERY_MS).unref();
  const thread = new Worker(
    `const { parentPort, workerData } = require("node:worker_threads");
  const { turns, maxTurnMs, lookEveryMs } = workerData;
  let test = "(no test yet)";
  let endsAtMs = Infinity;
  let seen = 0;
  const usedMs = () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  let seenAtMs = usedMs();
  parentPort.on("message", ({ name, maxWorkMs }) => {
    test = name;
    endsAtMs = usedMs() + maxWorkMs;
  });
  const end = (reason) => {
    require("node:fs").writeSync(2, reason + " in: " + test + "\\n");
    process.kill(process.pid, "SIGKILL");
  };
  setInterval(() => {
    const now = Atomics.load(turns, 0);
    if (now !== seen) [seen, seenAtMs] = [now, usedMs()];
    if (usedMs() - seenAtMs >= maxTurnMs) end("The event loop has stood still for " + maxTurnMs / 1000 + " s of work");
    if (usedMs() >= endsAtMs) end("More work than a test of this file may take");
  }, lookEveryMs);`,
    {
      eval: true,
      workerData: { turns, maxTurnMs: inject("maxTurnMs"), lookEveryMs: POLL_EVERY_MS },
    },
  );
  thread.unref();
  return thread;
}

let testBeganAtMs = 0;

beforeEach(() => {
  testBeganAtMs = performance.now();
  bound(Number.POSITIVE_INFINITY);
});

function bound(maxWorkMs: number): void {
  watcher.postMessage({ name: testName(), maxWorkMs });
}

function testName(): string {
  const { testPath, currentTestName } = expect.getState();
  return `${testPath} > ${currentTestName}`;
}

/**
 * Ends the process once this test has taken as much processor time as the longest turn may. It is for work that gives the
 * event loop its turns: if it never ends, it would go on behind the tests that follow.
 */
export const limitWork = () => bound(inject("maxTurnMs"));

// The hook comes before the servers and processes of the test end, and with them its waits.
afterEach(({ task }) => {
  bound(Number.POSITIVE_INFINITY);
  const [error] = task.result?.errors ?? [];
  const waits = openWaits(testBeganAtMs);
  if (error === undefined || waits.length === 0) return;
  error.message += `\nThe test was waiting for:\n${waits.map((wait) => `- ${wait}`).join("\n")}`;
});
