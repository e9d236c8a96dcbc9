/**
 * Reads what an upstream says about its rate limits in the headers of an answer.
 *
 * OpenAI, Azure, Groq and most gateways write `x-ratelimit-limit-requests` and its five siblings; Mistral writes
 * `-req-minute` and `-tokens-minute`, Cerebras `-tokens-minute`. Limits named after a day must be left out: they are
 * no rate. The time until a limit is whole again is a duration as Go prints it (`6m0s`, `60ms`) or bare seconds. A
 * date in its place is no duration and is ignored.
 */
import type { AnswerHeaders } from "../request.ts";
import { header } from "./answer.ts";

export interface RateLimitHint {
  readonly limit: number | null;
  readonly remaining: number | null;
  /** The time until the whole limit is there again. */
  readonly resetMs: number | null;
}

export interface RateLimitHints {
  readonly requests: RateLimitHint;
  readonly tokens: RateLimitHint;
}

interface Spelling {
  readonly limit: string;
  readonly remaining: string;
  readonly reset: string;
}

const spelling = (unit: string): Spelling => ({
  limit: `x-ratelimit-limit-${unit}`,
  remaining: `x-ratelimit-remaining-${unit}`,
  reset: `x-ratelimit-reset-${unit}`,
});
const REQUESTS = ["requests", "req-minute", "requests-minute"].map(spelling);
const TOKENS = ["tokens", "tokens-minute"].map(spelling);

const NOTHING: RateLimitHint = { limit: null, remaining: null, resetMs: null };

/** Returns null when the headers (names in lower case) say nothing about limits. Each answer passes here. */
export function rateLimitHints(headers: AnswerHeaders): RateLimitHints | null {
  const requests = spellingIn(headers, REQUESTS);
  const tokens = spellingIn(headers, TOKENS);
  if (requests === null && tokens === null) return null;
  return { requests: readHint(headers, requests), tokens: readHint(headers, tokens) };
}

function spellingIn(headers: AnswerHeaders, spellings: readonly Spelling[]): Spelling | null {
  for (const each of spellings) {
    if (headers[each.limit] !== undefined || headers[each.remaining] !== undefined) return each;
  }
  return null;
}

function readHint(headers: AnswerHeaders, names: Spelling | null): RateLimitHint {
  if (names === null) return NOTHING;
  return {
    // Some gateways write zero when there is no limit.
    limit: countIn(header(headers, names.limit)) || null,
    remaining: countIn(header(headers, names.remaining)),
    resetMs: durationMsIn(header(headers, names.reset)),
  };
}

function countIn(value: string | null): number | null {
  const text = value?.trim() ?? "";
  return /^\d{1,15}(\.\d*)?$/.test(text) ? Math.floor(Number(text)) : null;
}

const UNIT_MS: Readonly<Record<string, number>> = {
  d: 86_400_000,
  h: 3_600_000,
  m: 60_000,
  s: 1_000,
  ms: 1,
  us: 1e-3,
  µs: 1e-3,
  ns: 1e-6,
};
const PIECES = /^(?:\d+(?:\.\d+)?(?:d|h|ms|m|s|us|µs|ns))+$/;
/** The bound above which bare seconds are a date, counted since 1970. */
const MAX_BARE_SECONDS = 100_000_000;

function durationMsIn(value: string | null): number | null {
  const text = value?.trim() ?? "";
  if (/^\d+(\.\d+)?$/.test(text)) {
    return Number(text) > MAX_BARE_SECONDS ? null : Number(text) * 1_000;
  }
  if (!PIECES.test(text)) return null;
  let durationMs = 0;
  for (const [, count, unit] of text.matchAll(/(\d+(?:\.\d+)?)([a-zµ]+)/g)) {
    durationMs += Number(count) * (UNIT_MS[unit as string] as number);
  }
  return durationMs;
}
