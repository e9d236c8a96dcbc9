/**
 * The rate limits of one target: when a request may go so that the target need not refuse it.
 *
 * A limit is configured, or learned from the answers, or both, and then the lower one counts; how each is kept is
 * told in `rate-limiter.ts`. Tokens are estimated before and known after. Estimates may be wrong by the same factor for
 * hours (another language, images in the body), so they are multiplied by what they turned out to be
 * worth lately; the rest of the error is charged or given back when the answer says what was used.
 */

import type { RateLimitHint, RateLimitHints } from "../../exchange/rate-limits.ts";
import { RateLimiter } from "./rate-limiter.ts";

export interface QuotaLimits {
  readonly requestsPerMinute: number | null;
  readonly tokensPerMinute: number | null;
}

export interface QuotaResult {
  /** What the request has taken; null when nothing was, because no limit was known yet. */
  readonly reservation: Reservation | null;
  /** Null when the answer does not say. */
  readonly usedTokens: number | null;
  readonly hints: RateLimitHints | null;
  /** A refusal that is about the rate. */
  readonly isRefused: boolean;
}

/** How many of the latest answers say what estimates are worth. */
const MEMORY_COUNT = 50;

/** What a request under way has taken from a quota. Its slot keeps it until the quota settles it. */
export interface Reservation {
  readonly estimatedTokens: number;
  /** What the estimate was held to be worth then. */
  readonly tokens: number;
  readonly atMs: number;
}

export class Quota {
  readonly #requests: RateLimiter;
  readonly #tokens: RateLimiter;
  readonly #worth = new EstimateWorth();
  /** Of the requests under way. */
  readonly #reservations = new Set<Reservation>();

  constructor(configured: QuotaLimits) {
    this.#requests = new RateLimiter(configured.requestsPerMinute);
    this.#tokens = new RateLimiter(configured.tokensPerMinute);
  }

  setLimits(configured: QuotaLimits): void {
    this.#requests.configure(configured.requestsPerMinute);
    this.#tokens.configure(configured.tokensPerMinute);
  }

  /** Whether any limit is known, of requests or tokens: else nothing here needs to be asked. */
  get isLimited(): boolean {
    return this.#requests.limit !== null || this.needsTokens;
  }

  /** Whether tokens are limited: only then does anybody need an estimate. */
  get needsTokens(): boolean {
    return this.#tokens.limit !== null;
  }

  /** When a request of so many tokens may go; an instant not after `nowMs` means now. */
  readyAtMs(estimatedTokens: number, nowMs: number): number {
    // Errors of the estimates under way add up as independent ones do.
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

  /** What became of it. */
  settle({ reservation, usedTokens, hints, isRefused }: QuotaResult, nowMs: number): void {
    // A quota that started anew meanwhile does not know it.
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
    if (hints !== null) {
      this.#requests.note(hints.requests, nowMs);
      this.#tokens.note(hints.tokens, nowMs);
    }
    if (isRefused) this.#cut(hints, nowMs);
  }

  /** Both, when the answer does not say which limit it was about. */
  #cut(hints: RateLimitHints | null, nowMs: number): void {
    const isAboutRequests = hints !== null && areRequestsSpent(hints.requests);
    const isAboutTokens = hints !== null && areTokensSpent(hints.tokens);
    if (isAboutRequests || !isAboutTokens) this.#requests.cut(nowMs);
    if (isAboutTokens || !isAboutRequests) this.#tokens.cut(nowMs);
  }
}

/** What estimated tokens turn out to be worth: used to estimated, over the latest answers and by their size. */
class EstimateWorth {
  #estimated = 0;
  #used = 0;
  #squaredError = 0;

  get factor(): number {
    return this.#estimated > 0 ? this.#used / this.#estimated : 1;
  }

  /** How far off a corrected estimate is, as a standard deviation. */
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

/** A request with more tokens than are left is refused while some are left. */
const FEW_TOKENS = 0.05;

const areRequestsSpent = ({ remaining }: RateLimitHint) => remaining === 0;
const areTokensSpent = ({ remaining, limit }: RateLimitHint) =>
  remaining !== null && remaining <= FEW_TOKENS * (limit ?? 0);

/** Whether a refusal is a matter of rate, as far as the answer says, and not of requests in flight. */
export const isAboutRate = (status: number, hints: RateLimitHints | null): boolean =>
  status === 429 &&
  hints !== null &&
  (areRequestsSpent(hints.requests) || areTokensSpent(hints.tokens));
