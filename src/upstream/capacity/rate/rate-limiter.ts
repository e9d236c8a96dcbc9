/**
 * One limit of so many units a minute, and the rate at which they are spent.
 *
 * Three rules stand side by side, and the strictest counts:
 * - *Evenly.* What was spent is a debt that is paid off at the limit's rate, and the next one goes when it is
 *   paid: the generic cell rate algorithm (ITU-T I.371), counted in units so that the rate may change. Upstreams
 *   that look at a second or ten at a time are content too.
 * - *Never more than the limit in any sixty seconds*, wherever the upstream lets its minute begin. Of single
 *   requests the first rule takes care; large ones need the sum.
 * - *Leave room for others.* When less is left than our own spending explains, somebody else spends too: what
 *   is left is then spread over the time until the limit is whole again. All who do that come to the same
 *   rate, with hardly a refusal. Where nothing is said of what is left, refusals must tell: `rate-fraction.ts`.
 *
 * What the headers of a slow answer say is old. It is compared with what was spent up to now, which is more
 * than what was spent then, so that our own spending is not taken for somebody else's.
 */
import type { RateLimitHint } from "../../exchange/rate-limits.ts";
import { RateFraction } from "./rate-fraction.ts";
import { RollingMinute } from "./rolling-minute.ts";

const MINUTE_MS = 60_000;
/** A hair below the limit: requests that leave evenly do not arrive evenly. */
const AIM = 0.98;
/** How much may go early, as time at the limit's rate: timers are late. */
const TOLERANCE_MS = 200;
/** What is given back may be spent again at once, up to this part of the limit. */
const MAX_CREDIT = 0.1;
/** Debts this small are errors of rounding. */
const PAID = 1e-6;

/** A limit of a minute is whole again after a minute. One that takes longer is of an hour or a day. */
const MAX_RESET_MS = 65_000;
/** This part of the limit may be missing before somebody else must have taken it. */
const UNEXPLAINED = 0.1;
/** When so much of the limit is our own spending, a refusal is nobody else's doing. */
const NEARLY_ALL = 0.9;
const MIN_SPREAD_MS = 1_000;
/** What was said to be left is forgotten after this, when no answer says it anew. */
const MAX_SPREAD_MS = 10_000;
/** How far off the time may be that a bucket needs to fill. */
const REFILL_ERROR_MS = 6_000;

export class RateLimiter {
  #configured: number | null;
  #learned: number | null = null;
  /** A limit that turned out to be of more than a minute: nothing to limit by. */
  #otherLimit: number | null = null;
  readonly #minute = new RollingMinute();
  readonly #share = new RateFraction();
  /** Below zero: credit. */
  #debt = 0;
  #debtAtMs = 0;
  #spreadPerMs = 0;
  #spreadUntilMs = 0;
  /** Whether what is left and the time until it is whole go together as in a bucket that fills all the time. */
  #isBucket = true;

  constructor(configuredPerMinute: number | null) {
    this.#configured = configuredPerMinute;
  }

  configure(perMinute: number | null): void {
    this.#configured = perMinute;
  }

  /** Units a minute: what is configured or what the upstream says, the lower of them. */
  get limit(): number | null {
    if (this.#configured === null || this.#learned === null) {
      return this.#configured ?? this.#learned;
    }
    return Math.min(this.#configured, this.#learned);
  }

  readyAtMs(amount: number, nowMs: number): number {
    const { limit } = this;
    if (limit === null) return nowMs;
    this.#payOff(nowMs);
    return Math.max(
      this.#paidAtMs(limit, nowMs),
      this.#minute.roomAtMs(amount, { limit: limit * this.#share.partAt(nowMs), nowMs }),
    );
  }

  spend(amount: number, nowMs: number): void {
    this.#payOff(nowMs);
    this.#minute.spend(amount, nowMs);
    this.#owe(amount);
  }

  /** What was spent then has turned out to be `amount` more, or less when it is negative. */
  correct(amount: number, spentAtMs: number): void {
    this.#minute.correct(amount, spentAtMs);
    this.#owe(amount);
  }

  /** What was refused is not spent. It is still paid off, for a minute at the most: a rush must not follow a refusal. */
  forgive(amount: number, spentAtMs: number): void {
    this.#minute.correct(-amount, spentAtMs);
    const { limit } = this;
    if (limit !== null && amount > limit) this.#owe(limit - amount);
  }

  note(hint: RateLimitHint, nowMs: number): void {
    this.#payOff(nowMs);
    if (hint.resetMs !== null && hint.resetMs > MAX_RESET_MS && hint.limit !== null) {
      this.#otherLimit = hint.limit;
      if (this.#learned === hint.limit) this.#learned = null;
    }
    if (hint.limit !== null && hint.limit === this.#otherLimit) return;
    this.#learned = hint.limit ?? this.#learned;
    this.#leaveRoom(hint, nowMs);
  }

  /** A refusal that this limit is the reason for. */
  cut(nowMs: number): void {
    const { limit } = this;
    if (limit === null) return;
    this.#payOff(nowMs);
    const isAllOurs = this.#minute.spentAt(nowMs) >= limit * NEARLY_ALL;
    this.#share.cut(nowMs, { isAllOurs });
  }

  /**
   * In a bucket that fills by itself, our own spending at our rate leaves it full: there, what is missing is always
   * somebody else's. Its rate needs no more than what is left over the time to fill. Other upstreams give back
   * all at once or what was spent a minute ago, so that twice as much can be had.
   */
  #leaveRoom({ remaining, resetMs }: RateLimitHint, nowMs: number): void {
    const whole = this.#learned ?? this.#configured;
    if (whole === null || remaining === null) return;
    const wholeInMs = Math.min(Math.max(resetMs ?? MINUTE_MS, MIN_SPREAD_MS), MINUTE_MS);
    const fullInMs = (1 - remaining / whole) * MINUTE_MS;
    if (Math.abs(wholeInMs - fullInMs) > REFILL_ERROR_MS) this.#isBucket = false;
    const isExplained = remaining + this.#minute.spentAt(nowMs) >= whole * (1 - UNEXPLAINED);
    const isAlone = isExplained && !this.#isBucket;
    this.#spreadPerMs = ((this.#isBucket ? 1 : 2) * remaining) / wholeInMs;
    this.#spreadUntilMs = isAlone ? nowMs : nowMs + Math.min(wholeInMs, MAX_SPREAD_MS);
  }

  #owe(amount: number): void {
    const { limit } = this;
    if (limit !== null) this.#debt = Math.max(this.#debt + amount, -limit * MAX_CREDIT);
  }

  /** Never falls but by a refusal or a new limit: who waits for an instant finds it kept. */
  #ratePerMs(limit: number, nowMs: number): number {
    return (limit * AIM * this.#share.partAt(nowMs)) / MINUTE_MS;
  }

  #paidAtMs(limit: number, nowMs: number): number {
    const rate = this.#ratePerMs(limit, nowMs);
    const owed = this.#debt - rate * TOLERANCE_MS;
    if (owed <= PAID) return nowMs;
    const spreadMs = Math.max(0, this.#spreadUntilMs - nowMs);
    const spreadRate = Math.min(rate, this.#spreadPerMs);
    if (owed < spreadRate * spreadMs) return Math.ceil(nowMs + owed / spreadRate);
    return Math.ceil(nowMs + spreadMs + (owed - spreadRate * spreadMs) / rate);
  }

  #payOff(nowMs: number): void {
    const sinceMs = this.#debtAtMs;
    if (nowMs <= sinceMs) return;
    this.#debtAtMs = nowMs;
    const { limit } = this;
    if (limit === null || this.#debt <= 0) return;
    // The rate of the beginning, as whoever waits was told.
    const rate = this.#ratePerMs(limit, sinceMs);
    const spreadMs = Math.max(0, Math.min(nowMs, this.#spreadUntilMs) - sinceMs);
    const paid = Math.min(rate, this.#spreadPerMs) * spreadMs + rate * (nowMs - sinceMs - spreadMs);
    this.#debt = Math.max(0, this.#debt - paid);
  }
}
