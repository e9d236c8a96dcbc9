/** Thins out log lines that are alike: a failure that lasts would fill the log with them. */
import type { Clock } from "../clock.ts";

const LOG_EVERY_MS = 10_000;

export class Repeats {
  readonly #clock: Pick<Clock, "elapsedMs">;
  readonly #loggedAtMs = new Map<string, number>();
  readonly #unloggedCounts = new Map<string, number>();

  constructor(clock: Pick<Clock, "elapsedMs">) {
    this.#clock = clock;
  }

  /** Returns how many lines of a kind the next one stands for, itself included; null when it is to be left out. */
  count(kind: string): number | null {
    const nowMs = this.#clock.elapsedMs();
    const count = (this.#unloggedCounts.get(kind) ?? 0) + 1;
    const loggedAtMs = this.#loggedAtMs.get(kind) ?? Number.NEGATIVE_INFINITY;
    if (nowMs - loggedAtMs < LOG_EVERY_MS) {
      this.#unloggedCounts.set(kind, count);
      return null;
    }
    this.#unloggedCounts.delete(kind);
    this.#loggedAtMs.set(kind, nowMs);
    return count;
  }
}
