/**
 * Learns from refusals which part of a limit is ours. Another client, perhaps another batchd, may spend from the same
 * limit.
 *
 * The part grows by addition and shrinks by multiplication: all clients that do so come to equal parts (Chiu and
 * Jain, 1989). A refusal while nearly the whole limit is our own spending is no sign of others. The estimates were
 * then a little wrong, and a small cut is enough. The part grows slowly at first, to stay near the level that proved
 * too high. Then it grows faster, in case the other client has gone.
 *
 * A refusal that does not say what it is about may be of a busy proxy. Scattered ones are no sign of others: a spent limit
 * refuses many requests in a row. They fill a leaky bucket, and the part shrinks when it overflows.
 */
const MINUTE_MS = 60_000;
const MIN_SHARE = 0.05;
const CUT = 0.7;
const NUDGE = 0.97;
/** One cut serves all refusals of so long, because requests in flight together are refused together. */
const CUT_EVERY_MS = 1_000;
/** Chance seldom gathers so many refusals. */
const OVERFLOW = 3;
/** The number of answers that make up for one refusal. */
const ANSWERS_PER_REFUSAL = 25;

const SLOW_GROWTH_MS = 30_000;
const SLOW_GROWTH_PER_MS = 0.08 / MINUTE_MS;
const GROWTH_PER_MS = 0.5 / MINUTE_MS;

export class RateFraction {
  #part = 1;
  #atMs = 0;
  #cutAtMs = Number.NEGATIVE_INFINITY;
  /** The refusals that are not made up for. */
  #bucket = 0;

  /** Returns a part above 0 and up to 1. Only {@link noteRefusal} makes it smaller. */
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

  noteAnswer(): void {
    this.#bucket = Math.max(0, this.#bucket - 1 / ANSWERS_PER_REFUSAL);
  }

  /** `isTold` is true when the refusal says that the limit is spent. */
  noteRefusal(nowMs: number, { isAllOurs, isTold }: { isAllOurs: boolean; isTold: boolean }): void {
    if (nowMs - this.#cutAtMs < CUT_EVERY_MS) return;
    this.#bucket++;
    if (!isTold && this.#bucket < OVERFLOW) return;
    this.#bucket = 0;
    this.#part = Math.max(MIN_SHARE, this.partAt(nowMs) * (isAllOurs ? NUDGE : CUT));
    this.#cutAtMs = nowMs;
  }
}
