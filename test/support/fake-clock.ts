import type { Cancel, Clock } from "../../src/clock.ts";
import { named } from "./waits.ts";

interface Sleeper {
  /** The end of the sleep, as elapsed time. */
  readonly atMs: number;
  readonly fn: () => void;
}

/** A clock that stands still until a test moves it. */
export class FakeClock implements Clock {
  /** The elapsed time. It begins like the one of a new process, so that no instant looks like a date. */
  #elapsedMs = 0;
  /** The date at which the elapsed time was 0. */
  #originMs: number;
  readonly #sleepers = new Set<Sleeper>();
  readonly #watchers = new Set<() => void>();

  constructor(startMs = Date.UTC(2026, 0, 5, 8)) {
    this.#originMs = startMs;
  }

  get sleeperCount(): number {
    return this.#sleepers.size;
  }

  /** The date at which the first sleep ends; Infinity without sleeps. */
  get nextAtMs(): number {
    let nextAtMs = Number.POSITIVE_INFINITY;
    for (const { atMs } of this.#sleepers) nextAtMs = Math.min(nextAtMs, atMs);
    return this.#originMs + nextAtMs;
  }

  nowMs(): number {
    return this.#originMs + this.#elapsedMs;
  }

  elapsedMs(): number {
    return this.#elapsedMs;
  }

  after(ms: number, fn: () => void): Cancel {
    const sleeper = { atMs: this.#elapsedMs + Math.max(0, ms), fn };
    if (sleeper.atMs === Number.POSITIVE_INFINITY) return () => {};
    this.#sleepers.add(sleeper);
    if (ms <= 0) this.#wake(sleeper);
    else for (const look of this.#watchers) look();
    return () => void this.#sleepers.delete(sleeper);
  }

  /** Resolves once `count` sleeps end at the date `atMs` or later. */
  async asleep(count: number, atMs: number): Promise<void> {
    const isReached = () =>
      [...this.#sleepers].filter((sleeper) => this.#originMs + sleeper.atMs >= atMs).length >=
      count;
    if (isReached()) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const look = () => {
      if (isReached()) resolve();
    };
    this.#watchers.add(look);
    await named(() => `${count} sleeps on the fake clock, which has ${this.sleeperCount}`, promise);
    this.#watchers.delete(look);
  }

  /** Lets time pass, and ends the sleeps that are over. */
  advance(ms: number): void {
    this.#elapsedMs += ms;
    for (const sleeper of this.#sleepers) if (sleeper.atMs <= this.#elapsedMs) this.#wake(sleeper);
  }

  /** Sets the date forward or back by `ms`. No time passes. */
  setBy(ms: number): void {
    this.#originMs += ms;
  }

  #wake(sleeper: Sleeper): void {
    queueMicrotask(() => {
      if (this.#sleepers.delete(sleeper)) sleeper.fn();
    });
  }
}
