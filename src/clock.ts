/**
 * The only source of time in `src/`. A test can reach the end of a window, or set the date, without a wait. So no other
 * file may ask the system for the time or set a timer.
 *
 * There are two times, and an instant of one means nothing in the other. *Dates* (`nowMs`) are for clients and the
 * database: deadlines, creation times, schedules. A date may be set back or forward at any moment. *Elapsed time*
 * (`elapsedMs`) never goes back, so it measures all durations: waits, latencies, pauses, timeouts. It begins anew with
 * each process, so it must never be stored or sent. A policy that takes the time as an argument accepts either, as long
 * as it is always the same one.
 */
export interface Clock {
  /** The date: milliseconds since 1970. An operator may set it back or forward. */
  nowMs(): number;
  /** The milliseconds since a moment before the work of this process began. They never go back. */
  elapsedMs(): number;
  /** Calls `fn` once after `ms`, and never before this call returns. The result cancels the call. */
  after(ms: number, fn: () => void): Cancel;
}

/** Cancels a call. It has no effect after the call. */
export type Cancel = () => void;

/** The longest timer. Node fires a longer one at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  elapsedMs: () => performance.now(),
  after: (ms, fn) => {
    if (ms > MAX_TIMER_MS) return afterLong(ms, fn);
    const timer = setTimeout(fn, ms);
    return () => clearTimeout(timer);
  },
};

function afterLong(ms: number, fn: () => void): Cancel {
  let cancel = systemClock.after(MAX_TIMER_MS, () => {
    cancel = systemClock.after(ms - MAX_TIMER_MS, fn);
  });
  return () => cancel();
}

/** Returns a clock with other dates, and the elapsed time of this one. */
export const clockWithDates = (clock: Clock, nowMs: () => number): Clock => ({
  nowMs,
  elapsedMs: () => clock.elapsedMs(),
  after: (ms, fn) => clock.after(ms, fn),
});

/** Returns the number of the turn of the event loop, which no clock of a test decides. */
export const turnNumber = (): number => performance.nodeTiming.uvMetricsInfo.loopCount;

/** Returns the elapsed time at which the date comes, unless the date is set before. */
export const elapsedAt = (clock: Pick<Clock, "nowMs" | "elapsedMs">, dateMs: number): number =>
  clock.elapsedMs() + dateMs - clock.nowMs();

/** Resolves after `ms`, or at once when the signal aborts. Never rejects. */
export function sleep(
  clock: Pick<Clock, "after">,
  ms: number,
  signal?: AbortSignal,
): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      cancel();
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const cancel = clock.after(ms, end);
    signal?.addEventListener("abort", end);
  });
}

/** Resolves to what `work` resolves to, or to `late` when it takes longer than `ms`. */
export async function within<T, Late>(
  clock: Pick<Clock, "after">,
  ms: number,
  { work, late }: { readonly work: Promise<T>; readonly late: Late },
): Promise<T | Late> {
  const ended = new AbortController();
  try {
    return await Promise.race([work, sleep(clock, ms, ended.signal).then(() => late)]);
  } finally {
    ended.abort();
  }
}

/** Aborts its signal with `reason` after `ms`, unless it is disposed of before. */
export function timeLimit(
  clock: Pick<Clock, "after">,
  ms: number,
  reason?: unknown,
): Disposable & { readonly signal: AbortSignal } {
  const timer = new AbortController();
  return {
    signal: timer.signal,
    [Symbol.dispose]: clock.after(ms, () => timer.abort(reason)),
  };
}

/** Calls `fn` repeatedly, with `ms` between two calls. The result ends the calls. */
export function every(clock: Pick<Clock, "after">, ms: number, fn: () => void): Cancel {
  let cancel: Cancel = () => {};
  const tick = () => {
    cancel = clock.after(ms, tick);
    fn();
  };
  cancel = clock.after(ms, tick);
  return () => cancel();
}
