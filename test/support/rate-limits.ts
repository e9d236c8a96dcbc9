/** The ways in which providers count requests and tokens against a limit per minute. */
import type { RateLimitHint, RateLimitHints } from "../../src/upstream/exchange/rate-limits.ts";

export type RateRule = "token_bucket" | "fixed_window" | "sliding_window";

export interface RateLimit {
  readonly perMinute: number;
  readonly rule: RateRule;
  /** The size of a full token bucket; a minute's worth when it is left out. */
  readonly burst?: number;
}

/** Counts against a limit. The instants of its calls must never go back. */
interface RateMeter {
  readonly limit: number;
  /** Returns the time until `amount` may pass; 0 for now. */
  waitMs(amount: number, nowMs: number): number;
  spend(amount: number, nowMs: number): void;
  remaining(nowMs: number): number;
  /** Returns the time until `remaining` is back at its maximum without further requests. */
  resetMs(nowMs: number): number;
}

export const MINUTE_MS = 60_000;

function createRateMeter(limit: RateLimit, nowMs: number): RateMeter {
  switch (limit.rule) {
    case "token_bucket":
      return new Bucket(limit, nowMs);
    case "fixed_window":
      return new FixedWindow(limit.perMinute);
    case "sliding_window":
      return new SlidingWindow(limit.perMinute);
  }
}

/** A token bucket that fills at a steady rate. A request larger than the bucket never passes. */
class Bucket implements RateMeter {
  readonly limit: number;
  readonly #size: number;
  readonly #perMs: number;
  #level: number;
  #atMs: number;

  constructor({ perMinute, burst }: RateLimit, nowMs: number) {
    this.limit = perMinute;
    this.#size = burst ?? perMinute;
    this.#perMs = perMinute / MINUTE_MS;
    this.#level = this.#size;
    this.#atMs = nowMs;
  }

  waitMs(amount: number, nowMs: number): number {
    return Math.max(0, Math.ceil((amount - this.#fill(nowMs)) / this.#perMs));
  }

  spend(amount: number, nowMs: number): void {
    this.#level = this.#fill(nowMs) - amount;
  }

  remaining(nowMs: number): number {
    return Math.max(0, Math.floor(this.#fill(nowMs)));
  }

  resetMs(nowMs: number): number {
    return Math.ceil((this.#size - this.#fill(nowMs)) / this.#perMs);
  }

  #fill(nowMs: number): number {
    this.#level = Math.min(this.#size, this.#level + (nowMs - this.#atMs) * this.#perMs);
    this.#atMs = nowMs;
    return this.#level;
  }
}

/** A window that starts again with each minute of the clock. */
class FixedWindow implements RateMeter {
  readonly limit: number;
  #minute = 0;
  #spent = 0;

  constructor(limit: number) {
    this.limit = limit;
  }

  waitMs(amount: number, nowMs: number): number {
    return amount <= this.remaining(nowMs) ? 0 : MINUTE_MS - (nowMs % MINUTE_MS);
  }

  spend(amount: number, nowMs: number): void {
    this.#turn(nowMs);
    this.#spent += amount;
  }

  remaining(nowMs: number): number {
    this.#turn(nowMs);
    return Math.max(0, this.limit - this.#spent);
  }

  resetMs(nowMs: number): number {
    this.#turn(nowMs);
    return this.#spent === 0 ? 0 : MINUTE_MS - (nowMs % MINUTE_MS);
  }

  #turn(nowMs: number): void {
    const minute = Math.floor(nowMs / MINUTE_MS);
    if (minute !== this.#minute) this.#spent = 0;
    this.#minute = minute;
  }
}

/** A window over the last 60 seconds at any moment. */
class SlidingWindow implements RateMeter {
  readonly limit: number;
  readonly #spendings: { readonly atMs: number; readonly amount: number }[] = [];
  #spent = 0;

  constructor(limit: number) {
    this.limit = limit;
  }

  waitMs(amount: number, nowMs: number): number {
    let lacking = amount - this.remaining(nowMs);
    if (lacking <= 0) return 0;
    for (const spending of this.#spendings) {
      lacking -= spending.amount;
      if (lacking <= 0) return spending.atMs + MINUTE_MS - nowMs;
    }
    return MINUTE_MS;
  }

  spend(amount: number, nowMs: number): void {
    this.#spendings.push({ atMs: nowMs, amount });
    this.#spent += amount;
  }

  remaining(nowMs: number): number {
    while ((this.#spendings[0]?.atMs ?? Infinity) <= nowMs - MINUTE_MS) {
      this.#spent -= this.#spendings.shift()?.amount ?? 0;
    }
    return Math.max(0, this.limit - this.#spent);
  }

  resetMs(nowMs: number): number {
    this.remaining(nowMs);
    const last = this.#spendings.at(-1);
    return last === undefined ? 0 : last.atMs + MINUTE_MS - nowMs;
  }
}

export interface RateLimits {
  readonly requests?: RateLimit;
  readonly tokens?: RateLimit;
}

/** Both limits of a server, and the headers that report them. */
export class RateLimiter {
  readonly #meters: { readonly requests: RateMeter | null; readonly tokens: RateMeter | null };

  constructor({ requests, tokens }: RateLimits, nowMs: number) {
    const meter = (limit: RateLimit | undefined) => limit && createRateMeter(limit, nowMs);
    this.#meters = { requests: meter(requests) ?? null, tokens: meter(tokens) ?? null };
  }

  /** Returns the time until a request with this many tokens may pass. A request that may pass now is charged. */
  charge(tokens: number, nowMs: number): number {
    const { requests, tokens: ofTokens } = this.#meters;
    const waitMs = Math.max(requests?.waitMs(1, nowMs) ?? 0, ofTokens?.waitMs(tokens, nowMs) ?? 0);
    if (waitMs > 0) return waitMs;
    requests?.spend(1, nowMs);
    ofTokens?.spend(tokens, nowMs);
    return 0;
  }

  hints(nowMs: number): RateLimitHints {
    const hintOf = (meter: RateMeter | null): RateLimitHint => ({
      limit: meter?.limit ?? null,
      remaining: meter?.remaining(nowMs) ?? null,
      resetMs: meter?.resetMs(nowMs) ?? null,
    });
    return { requests: hintOf(this.#meters.requests), tokens: hintOf(this.#meters.tokens) };
  }

  headers(nowMs: number): Record<string, string> {
    const headers: Record<string, string> = {};
    for (const [kind, hint] of Object.entries(this.hints(nowMs))) {
      if (hint.limit === null) continue;
      headers[`x-ratelimit-limit-${kind}`] = String(hint.limit);
      headers[`x-ratelimit-remaining-${kind}`] = String(hint.remaining);
      headers[`x-ratelimit-reset-${kind}`] = durationText(hint.resetMs);
    }
    return headers;
  }
}

/** Formats a duration like OpenAI: `120ms`, `7.5s`, `1m30s`. */
function durationText(ms: number): string {
  if (ms < 1000) return `${Math.ceil(ms)}ms`;
  const minutes = Math.floor(ms / MINUTE_MS);
  const seconds = `${(ms % MINUTE_MS) / 1000}s`;
  return minutes === 0 ? seconds : `${minutes}m${seconds}`;
}
