/**
 * Which part of a limit is ours, as refusals tell: somebody else, another batchd perhaps, may spend of it too.
 *
 * Additive up, multiplicative down: all who do that come to equal parts (Chiu and Jain, 1989). A refusal while
 * nearly the whole limit is our own spending is no sign of others; then estimates were a little wrong, and a
 * nudge will do. The share grows slowly at first, so that it stays near what was found to be too much, and then faster,
 * in case that whoever took the rest has gone.
 */
const MINUTE_MS = 60_000;
const MIN_SHARE = 0.05;
const CUT = 0.7;
const NUDGE = 0.97;
/** Requests in flight together are refused together. */
const CUT_EVERY_MS = 1_000;

const SLOW_GROWTH_MS = 30_000;
const SLOW_GROWTH_PER_MS = 0.08 / MINUTE_MS;
const GROWTH_PER_MS = 0.5 / MINUTE_MS;

export class RateFraction {
  #part = 1;
  #atMs = 0;
  #cutAtMs = Number.NEGATIVE_INFINITY;

  /** Above 0 and up to 1. Never shrinks but by {@link cut}. */
  partAt(nowMs: number): number {
    if (this.#part < 1 && nowMs > this.#atMs) {
      const slowUntilMs = this.#cutAtMs + SLOW_GROWTH_MS;
      const slowMs = Math.max(0, Math.min(nowMs, slowUntilMs) - this.#atMs);
      const fastMs = nowMs - this.#atMs - slowMs;
      this.#part += slowMs * SLOW_GROWTH_PER_MS + fastMs * GROWTH_PER_MS;
      this.#part = Math.min(1, this.#part);
    }
    this.#atMs = Math.max(this.#atMs, nowMs);
    return this.#part;
  }

  cut(nowMs: number, { isAllOurs }: { isAllOurs: boolean }): void {
    if (nowMs - this.#cutAtMs < CUT_EVERY_MS) return;
    this.#part = Math.max(MIN_SHARE, this.partAt(nowMs) * (isAllOurs ? NUDGE : CUT));
    this.#cutAtMs = nowMs;
  }
}
