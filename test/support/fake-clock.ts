import type { Clock } from "../../src/clock.ts";

interface Sleeper {
  readonly atMs: number;
  readonly wake: () => void;
}

/** Time that stands still until it is moved. */
export class FakeClock implements Clock {
  #nowMs: number;
  readonly #sleepers = new Set<Sleeper>();
  readonly #watchers = new Set<() => void>();

  constructor(startMs = Date.UTC(2026, 0, 5, 8)) {
    this.#nowMs = startMs;
  }

  get sleeperCount(): number {
    return this.#sleepers.size;
  }

  /** When the first of the sleeps ends; Infinity when nobody sleeps. */
  get nextAtMs(): number {
    let nextAtMs = Number.POSITIVE_INFINITY;
    for (const { atMs } of this.#sleepers) nextAtMs = Math.min(nextAtMs, atMs);
    return nextAtMs;
  }

  nowMs(): number {
    return this.#nowMs;
  }

  async sleep(ms: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted || ms <= 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const wake = () => resolve();
    const sleeper = { atMs: this.#nowMs + ms, wake };
    this.#sleepers.add(sleeper);
    for (const look of this.#watchers) look();
    signal.addEventListener("abort", wake, { once: true });
    await promise;
    signal.removeEventListener("abort", wake);
    this.#sleepers.delete(sleeper);
  }

  /** Resolves once `count` sleeps end at `atMs` or later. */
  async asleep(count: number, atMs: number): Promise<void> {
    const isReached = () =>
      [...this.#sleepers].filter((sleeper) => sleeper.atMs >= atMs).length >= count;
    if (isReached()) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const look = () => {
      if (isReached()) resolve();
    };
    this.#watchers.add(look);
    await promise;
    this.#watchers.delete(look);
  }

  /** Moves time on and wakes everybody whose time has come. */
  advance(ms: number): void {
    this.#nowMs += ms;
    for (const sleeper of this.#sleepers) if (sleeper.atMs <= this.#nowMs) sleeper.wake();
  }
}
