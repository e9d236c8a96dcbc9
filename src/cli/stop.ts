/** Ends a server at a signal, within the time that a supervisor gives it. */
import { once } from "node:events";
import { type Clock, sleep } from "../clock.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { Log } from "../telemetry/log.ts";
import { FAILED, OK } from "../terminal/output.ts";

const INTERRUPTED = 130;
/** The longest time for the close after the grace of requests. Some supervisors wait for half a minute in all. */
const CLOSE_WITHIN_MS = 8_000;

/** The time for a start to end by itself after a signal. It may be bringing the database up to date. */
const START_WITHIN_MS = 3_000;

interface Stopping {
  readonly clock: Pick<Clock, "after">;
  readonly log: Log;
}

/**
 * Closes the runtime, or ends at once at the second signal. A database or a bucket that is silent would keep the process for
 * more than a minute, and a supervisor would kill it. The process therefore ends in time, and what is left is taken up as
 * after a kill.
 */
export function stop(
  runtime: Pick<Runtime, "close" | "closeGraceMs">,
  { clock, log }: Stopping,
): Promise<number> {
  const secondSignal = nextSignal().then(() => INTERRUPTED);
  const closed = runtime.close().then(() => {
    log.info("server.stopped");
    return OK;
  });
  const cutOff = sleep(clock, runtime.closeGraceMs + CLOSE_WITHIN_MS).then(() => {
    log.warn("server.cut_off");
    return FAILED;
  });
  return Promise.race([closed, secondSignal, cutOff]);
}

/**
 * Resolves to what a start resolves to, or to null when it goes on for long after a signal: a bucket that is silent keeps it for
 * minutes. Nothing is served then, so the process may end as by a kill.
 */
export async function startUntil<Started>(
  signal: Promise<unknown>,
  starting: Promise<Started>,
  { clock, log }: Stopping,
): Promise<Started | null> {
  const ended = new AbortController();
  const cutOff = signal.then(() => sleep(clock, START_WITHIN_MS, ended.signal)).then(() => null);
  try {
    const started = await Promise.race([starting, cutOff]);
    if (started === null) log.warn("server.cut_off");
    return started;
  } finally {
    ended.abort();
  }
}

/** The time for file operations to end by themselves. */
const FILES_WITHIN_MS = 500;

/**
 * Ends the process by a signal where its exit would never come: Node.js waits in it for file operations, and one at a share whose
 * server is gone does not end. As the first process of a container it cannot end itself so, and is left to its supervisor.
 */
export async function leaveSilentShares(clock: Pick<Clock, "after">): Promise<void> {
  if (!isAnyFileOperationUnderWay()) return;
  await sleep(clock, FILES_WITHIN_MS);
  if (!isAnyFileOperationUnderWay()) return;
  process.removeAllListeners("SIGTERM");
  process.kill(process.pid, "SIGTERM");
}

const isAnyFileOperationUnderWay = () =>
  process.getActiveResourcesInfo().some((name) => name.startsWith("FSReq"));

/** Resolves to the next signal. The second one, during the grace period, ends the process at once. */
export function nextSignal(): Promise<string> {
  const signals = ["SIGTERM", "SIGINT"] as const;
  return Promise.race(signals.map((signal) => once(process, signal).then(() => signal)));
}
