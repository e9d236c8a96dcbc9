/**
 * The rate limits of one target: they decide when a request may go so that the target need not refuse it.
 *
 * A limit is configured, or learned from the answers, or both, and then the lower one counts; `rate-limiter.ts`
 * enforces each. Tokens are estimated before an attempt and known after it. Estimates may be wrong by the same factor
 * for hours (another language, images in the body). They are therefore multiplied by the factor of recent answers.
 * The rest of the error is charged or given back when the answer reports its usage.
 */

import type { RateLimitHint, RateLimitHints } from "../../exchange/rate-limits.ts";
import { RateLimiter } from "./rate-limiter.ts";

export interface QuotaLimits {
  readonly requestsPerMinute: number | null;
  readonly tokensPerMinute: number | null;
}

export interface QuotaResult {
  /** The units that the request has taken; null when it took none, because no limit was known yet. */
  readonly reservation: Reservation | null;
  /** The tokens that the answer reports; null when it reports none. */
  readonly usedTokens: number | null;
  readonly hints: RateLimitHints | null;
  /** Whether the target refused the request for its rate. */
  readonly isRefused: boolean;
}

/** The number of recent answers from which the factor of the estimates is learned. */
const MEMORY_COUNT = 50;

/**
 * The units that a request under way has taken from a quota. Its slot keeps the reservation until the quota settles
 * it.
 */
export interface Reservation {
  readonly estimatedTokens: number;
  /** The corrected estimate of the tokens, as it was then. */
  readonly tokens: number;
  readonly atMs: number;
}

export class Quota {
  readonly #requests = new RateLimiter();
  readonly #tokens = new RateLimiter();
  readonly #worth = new EstimateWorth();
  /** The reservations of the requests under way. */
  readonly #reservations = new Set<Reservation>();

  constructor(configured: QuotaLimits) {
    this.setLimits(configured);
  }

  setLimits(configured: QuotaLimits): void {
    this.#requests.configure(configured.requestsPerMinute);
    this.#tokens.configure(configured.tokensPerMinute);
  }

  /** Whether any limit is known, for requests or tokens. Without one this file need not be asked. */
  get isLimited(): boolean {
    return this.#requests.limit !== null || this.needsTokens;
  }

  /** Whether tokens are limited. Estimates are needed only then. */
  get needsTokens(): boolean {
    return this.#tokens.limit !== null;
  }

  report(nowMs: number) {
    return { requests: this.#requests.report(nowMs), tokens: this.#tokens.report(nowMs) };
  }

  /** Returns when a request with so many tokens may go; an instant not after `nowMs` means now. */
  readyAtMs(estimatedTokens: number, nowMs: number): number {
    // The errors of the estimates under way add up as independent errors do.
    const doubtTokens = this.#worth.errorTokens * Math.sqrt(this.#reservations.size);
    const tokens = estimatedTokens * this.#worth.factor + doubtTokens;
    return Math.max(this.#requests.readyAtMs(1, nowMs), this.#tokens.readyAtMs(tokens, nowMs));
  }

  take(estimatedTokens: number, nowMs: number): Reservation {
    const tokens = estimatedTokens * this.#worth.factor;
    const reservation = { estimatedTokens, tokens, atMs: nowMs };
    this.#reservations.add(reservation);
    this.#requests.spend(1, nowMs);
    this.#tokens.spend(tokens, nowMs);
    return reservation;
  }

  /** Settles the charge of a request that has ended. */
  settle({ reservation, usedTokens, hints, isRefused }: QuotaResult, nowMs: number): void {
    // Each reservation is settled once.
    if (reservation !== null && this.#reservations.delete(reservation)) {
      const { estimatedTokens, tokens, atMs } = reservation;
      if (isRefused) {
        this.#requests.forgive(1, atMs);
        this.#tokens.forgive(tokens, atMs);
      } else if (usedTokens !== null) {
        this.#tokens.correct(usedTokens - tokens, atMs);
        this.#worth.learn(estimatedTokens, usedTokens);
      }
    }
    if (hints !== null || !isRefused) {
      this.#requests.note(hints?.requests ?? null, nowMs);
      this.#tokens.note(hints?.tokens ?? null, nowMs);
    }
    if (isRefused) this.#noteRefusal(hints, nowMs);
    else this.#noteAnswer();
  }

  #noteAnswer(): void {
    this.#requests.noteAnswer();
    this.#tokens.noteAnswer();
  }

  /** Either limit may be the reason when the answer does not say which one it was about. */
  #noteRefusal(hints: RateLimitHints | null, nowMs: number): void {
    const isAboutRequests = hints !== null && areRequestsSpent(hints.requests);
    const isAboutTokens = hints !== null && areTokensSpent(hints.tokens);
    const isTold = isAboutRequests || isAboutTokens;
    if (isAboutRequests || !isAboutTokens) this.#requests.noteRefusal(nowMs, { isTold });
    if (isAboutTokens || !isAboutRequests) this.#tokens.noteRefusal(nowMs, { isTold });
  }
}

/** The factor between used and estimated tokens, over the latest answers and weighted by their size. */
class EstimateWorth {
  #estimated = 0;
  #used = 0;
  #squaredError = 0;

  get factor(): number {
    return this.#estimated > 0 ? this.#used / this.#estimated : 1;
  }

  /** The error of a corrected estimate, as a standard deviation. */
  get errorTokens(): number {
    return Math.sqrt(this.#squaredError);
  }

  learn(estimated: number, used: number): void {
    if (estimated <= 0 || used <= 0) return;
    if (this.#estimated > 0) {
      const squared = (used - estimated * this.factor) ** 2;
      this.#squaredError += (squared - this.#squaredError) / MEMORY_COUNT;
    }
    this.#estimated += estimated - this.#estimated / MEMORY_COUNT;
    this.#used += used - this.#used / MEMORY_COUNT;
  }
}

/** A request that needs more tokens than are left is refused while some are left. */
const FEW_TOKENS = 0.05;

const areRequestsSpent = ({ remaining }: RateLimitHint) => remaining === 0;
const areTokensSpent = ({ remaining, limit }: RateLimitHint) =>
  remaining !== null && remaining <= FEW_TOKENS * (limit ?? 0);

/** Whether a refusal is about the rate, as far as the answer says, and not about requests in flight. */
export const isAboutRate = (status: number, hints: RateLimitHints | null): boolean =>
  status === 429 &&
  hints !== null &&
  (areRequestsSpent(hints.requests) || areTokensSpent(hints.tokens));
