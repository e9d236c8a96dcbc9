/** Loops that repeat a pass, at intervals and on a nudge. */
import { setImmediate as nextTurn } from "node:timers/promises";
import { type Clock, sleep } from "./clock.ts";
import type { Log } from "./telemetry/log.ts";

/** The reason of an abort. Without one, each abort would create an error with a stack. */
const NUDGED = "nudged";

/** The longest time until a pass that failed is run again, however rarely its loop runs. */
const RETRY_WITHIN_MS = 60_000;

/** Wakes the loops that wait on it. A nudge may only save time: every loop also runs without one. */
export class Nudge {
  #count = 0;
  readonly #sleepers = new Set<AbortController>();

  /** The number of nudges so far. */
  get count(): number {
    return this.#count;
  }

  now(): void {
    this.#count++;
    for (const sleeper of this.#sleepers) sleeper.abort(NUDGED);
  }

  /** Resolves after `ms`, at the next nudge, or when `drain` aborts. */
  async wait(clock: Clock, ms: number, drain: AbortSignal): Promise<void> {
    const sleeper = new AbortController();
    const stop = () => sleeper.abort(NUDGED);
    this.#sleepers.add(sleeper);
    drain.addEventListener("abort", stop, { once: true });
    await sleep(clock, ms, sleeper.signal);
    drain.removeEventListener("abort", stop);
    this.#sleepers.delete(sleeper);
  }
}

/** Runs one pass. True asks for another one right away, and a number for one after so many milliseconds at most. */
export type RunOnce = () => Promise<boolean | number> | Promise<void>;

export interface LoopOptions {
  readonly name: string;
  readonly everyMs: number;
  readonly nudge: Nudge;
  readonly drain: AbortSignal;
  readonly clock: Clock;
  readonly log: Log;
  readonly runOnce: RunOnce;
}

/** Resolves once drained. Never rejects: a failed pass is logged, then repeated. */
export async function loop(options: LoopOptions): Promise<void> {
  const { name, everyMs, nudge, drain, clock, log, runOnce } = options;
  while (!drain.aborted) {
    // A nudge during the pass may concern work that the pass did not see.
    const nudgesSeen = nudge.count;
    let pauseMs = everyMs;
    const next = await runOnce().catch((err: unknown) => {
      log.error({ loop: name, err }, "loop.pass_failed");
      pauseMs = Math.min(everyMs, RETRY_WITHIN_MS);
    });
    if (next !== true && nudge.count === nudgesSeen && !drain.aborted) {
      if (typeof next === "number") pauseMs = Math.min(pauseMs, next);
      await nudge.wait(clock, pauseMs, drain);
    } else {
      // One pass may run without a turn of the event loop; a long row of passes must not.
      await nextTurn();
    }
  }
}
