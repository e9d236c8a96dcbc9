/**
 * Time, for the whole of `src/`: nothing else asks the system for it or sets a timer, so that a test can reach the
 * end of a window, and set the date, without a wait.
 *
 * There are two times, and an instant of one says nothing about the other. *Dates* (`nowMs`) are what clients and the
 * database see: deadlines, creation times, schedules. A date may be set back or forward at any moment. *Elapsed time*
 * (`elapsedMs`) never goes back, so whatever lasts is measured by it: waits, latencies, pauses, timeouts. It begins
 * anew with each process; it must never be stored or sent. The policies that take the time as an argument do not care
 * which it is, as long as it is always the same.
 */
export interface Clock {
  /** The date: milliseconds since 1970. It may be set. */
  nowMs(): number;
  /** Milliseconds since some moment before this process began to work. It never goes back. */
  elapsedMs(): number;
  /** Calls `fn` once when `ms` have elapsed, and never before it returns. The result cancels that. */
  after(ms: number, fn: () => void): Cancel;
}

/** Does nothing when it is too late. */
export type Cancel = () => void;

/** Node calls at once what is to wait longer. */
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

/** When that date comes, as elapsed time, unless the date is set before. */
export const elapsedAt = (clock: Pick<Clock, "nowMs" | "elapsedMs">, dateMs: number): number =>
  clock.elapsedMs() + dateMs - clock.nowMs();

/** Resolves after `ms`, or at once when the signal aborts. Never rejects. */
export function sleep(clock: Pick<Clock, "after">, ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      cancel();
      signal.removeEventListener("abort", end);
      resolve();
    };
    const cancel = clock.after(ms, end);
    signal.addEventListener("abort", end);
  });
}

/** Calls `fn` again and again, with `ms` between two calls. The result ends that. */
export function every(clock: Pick<Clock, "after">, ms: number, fn: () => void): Cancel {
  let cancel: Cancel = () => {};
  const tick = () => {
    cancel = clock.after(ms, tick);
    fn();
  };
  cancel = clock.after(ms, tick);
  return () => cancel();
}
