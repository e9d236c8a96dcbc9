/**
 * Enforces one limit of so many units a minute.
 *
 * Three rules stand side by side, and the strictest counts:
 * - *Evenly.* Spent units are a debt that is paid off at the limit's rate, and the next request goes when it is paid.
 *   This is the generic cell rate algorithm (ITU-T I.371), counted in units so that the rate may change. It also
 *   satisfies upstreams that measure a second or ten at a time.
 * - *Never more than the limit in any sixty seconds*, wherever the upstream lets its minute begin. The first rule
 *   ensures it for single requests; large ones need the sum.
 * - *Leave room for others.* When less is left than our own spending explains, another client spends too. The rest is
 *   then spread over the time until the limit is whole again. All clients that do so come to the same rate, with
 *   hardly a refusal. Where the upstream does not report the rest, refusals must tell: `rate-fraction.ts`.
 *
 * The headers of a slow answer are old. They are compared with our spending up to now, which is more than at their
 * time. Our own spending must not be taken for another client's.
 */
import type { RateLimitHint } from "../../exchange/rate-limits.ts";
import { RateFraction } from "./rate-fraction.ts";
import { RollingMinute } from "./rolling-minute.ts";

const MINUTE_MS = 60_000;
/** The aim lies just below the limit: requests that leave evenly do not arrive evenly. */
const AIM = 0.98;
/** The time by which requests may go early at the limit's rate, because timers are late. */
const TOLERANCE_MS = 200;
/** Units given back may be spent again at once, up to this part of the limit. */
const MAX_CREDIT = 0.1;
/** Debts this small are errors of rounding. */
const PAID = 1e-6;

/** A limit per minute is whole again after a minute. A limit that takes longer covers an hour or a day. */
const MAX_RESET_MS = 65_000;
/** This part of the limit may be missing before another client must have taken it. */
const UNEXPLAINED = 0.1;
/** A refusal is no sign of other clients when so much of the limit is our own spending. */
const NEARLY_ALL = 0.9;
const MIN_SPREAD_MS = 1_000;
/** The reported rest is forgotten after this, unless another answer reports it anew. */
const MAX_SPREAD_MS = 10_000;
/** A learned limit that the answers no longer report is forgotten after this. */
const LEARNED_FOR_MS = 600_000;
/** The possible error in the time that a bucket needs to fill. */
const REFILL_ERROR_MS = 6_000;

export class RateLimiter {
  #configured: number | null = null;
  #learned: number | null = null;
  /** The last time at which an answer reported the limit, or refused a request for it. */
  #learnedAtMs = 0;
  /** A limit that turned out to cover more than a minute, and so cannot be enforced here. */
  #otherLimit: number | null = null;
  readonly #minute = new RollingMinute();
  readonly #share = new RateFraction();
  /** A debt below zero is credit. */
  #debt = 0;
  #debtAtMs = 0;
  #spreadPerMs = 0;
  #spreadUntilMs = 0;
  /** Whether the rest and the time until it is whole fit together as in a bucket that fills all the time. */
  #isBucket = true;

  configure(perMinute: number | null): void {
    this.#configured = perMinute;
  }

  /** The units a minute: the configured limit or the upstream's, whichever is lower. */
  get limit(): number | null {
    if (this.#configured === null || this.#learned === null) {
      return this.#configured ?? this.#learned;
    }
    return Math.min(this.#configured, this.#learned);
  }

  /** Describes what is learned and used; null while no limit is known, as nothing is counted then. */
  report(nowMs: number): { readonly learned: number | null; readonly used: number } | null {
    if (this.limit === null) return null;
    return { learned: this.#learned, used: Math.max(0, Math.round(this.#minute.spentAt(nowMs))) };
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

  /** Corrects the units spent at that instant by `amount`, which is negative when there were fewer. */
  correct(amount: number, spentAtMs: number): void {
    this.#minute.correct(amount, spentAtMs);
    this.#owe(amount);
  }

  /**
   * Gives back the units of a refused request, which spent nothing. They are still paid off, for a minute at the
   * most: a rush must not follow a refusal.
   */
  forgive(amount: number, spentAtMs: number): void {
    this.#minute.correct(-amount, spentAtMs);
    const { limit } = this;
    if (limit !== null && amount > limit) this.#owe(limit - amount);
  }

  /** Takes what an answer says of the limit; null when it says nothing. */
  note(hint: RateLimitHint | null, nowMs: number): void {
    this.#payOff(nowMs);
    if ((hint?.limit ?? null) !== null) this.#learnedAtMs = nowMs;
    else if (nowMs - this.#learnedAtMs > LEARNED_FOR_MS) this.#forget();
    if (hint === null) return;
    if (hint.resetMs !== null && hint.resetMs > MAX_RESET_MS && hint.limit !== null) {
      this.#otherLimit = hint.limit;
      if (this.#learned === hint.limit) this.#learned = null;
    }
    if (hint.limit !== null && hint.limit === this.#otherLimit) return;
    this.#learned = hint.limit ?? this.#learned;
    this.#spread(hint, nowMs);
  }

  /** Notes a request that the target did not refuse for its rate. */
  noteAnswer(): void {
    this.#share.noteAnswer();
  }

  /** Handles a refusal for which this limit is the reason, or may be if the refusal does not tell. */
  noteRefusal(nowMs: number, { isTold }: { readonly isTold: boolean }): void {
    const { limit } = this;
    if (limit === null) return;
    this.#learnedAtMs = nowMs;
    this.#payOff(nowMs);
    const isAllOurs = this.#minute.spentAt(nowMs) >= limit * NEARLY_ALL;
    this.#share.noteRefusal(nowMs, { isAllOurs, isTold });
  }

  /**
   * Lowers the rate when another client spends too. In a bucket that fills by itself, our own spending at our rate
   * leaves it full, so the missing part is always another client's. Its rate needs no more than the rest over the
   * time to fill. Other upstreams give back everything at once, or the units spent a minute ago, so that twice as
   * much can be had.
   */
  #spread({ remaining, resetMs }: RateLimitHint, nowMs: number): void {
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

  /** Nothing is paid off while there is no limit, so no debt may be left for a later one. */
  #forget(): void {
    this.#learned = null;
    if (this.limit === null) this.#debt = 0;
  }

  #owe(amount: number): void {
    const { limit } = this;
    if (limit !== null) this.#debt = Math.max(this.#debt + amount, -limit * MAX_CREDIT);
  }

  /**
   * Returns the rate. Only a refusal or a new limit makes it fall, so a request that waits for an instant can go at
   * it.
   */
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
    // The rate is the one from the beginning, which the waiting request was promised.
    const rate = this.#ratePerMs(limit, sinceMs);
    const spreadMs = Math.max(0, Math.min(nowMs, this.#spreadUntilMs) - sinceMs);
    const paid = Math.min(rate, this.#spreadPerMs) * spreadMs + rate * (nowMs - sinceMs - spreadMs);
    this.#debt = Math.max(0, this.#debt - paid);
  }
}
