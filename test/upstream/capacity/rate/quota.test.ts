import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  isAboutRate,
  Quota,
  type QuotaLimits,
} from "../../../../src/upstream/capacity/rate/quota.ts";
import type {
  RateLimitHint,
  RateLimitHints,
} from "../../../../src/upstream/exchange/rate-limits.ts";
import { MINUTE_MS } from "../../../support/rate-limits.ts";

const NONE: QuotaLimits = { requestsPerMinute: null, tokensPerMinute: null };
const START_MS = 1_700_000_000_000;

const NO_HINT: RateLimitHint = { limit: null, remaining: null, resetMs: null };
const hintsOf = ({
  requests,
  tokens,
}: Partial<Record<"requests" | "tokens", Partial<RateLimitHint>>>) => ({
  requests: { ...NO_HINT, ...requests },
  tokens: { ...NO_HINT, ...tokens },
});

/** One after the other, each as soon as it may: when they went. */
function pass(quota: Quota, tokens: readonly number[], startMs = START_MS): number[] {
  let nowMs = startMs;
  return tokens.map((estimatedTokens) => {
    nowMs = Math.max(nowMs, quota.readyAtMs(estimatedTokens, nowMs));
    expect(quota.readyAtMs(estimatedTokens, nowMs)).toBe(nowMs);
    quota.take(estimatedTokens, nowMs);
    return nowMs;
  });
}

/** How much went in the fullest sixty seconds. */
function mostInAMinute(wentAtMs: readonly number[], amounts: readonly number[]): number {
  let [most, sum, first] = [0, 0, 0];
  wentAtMs.forEach((atMs, i) => {
    sum += amounts[i]!;
    while (wentAtMs[first]! <= atMs - MINUTE_MS) sum -= amounts[first++]!;
    most = Math.max(most, sum);
  });
  return most;
}

const told = (quota: Quota, hints: RateLimitHints | null, nowMs = START_MS) =>
  quota.settle({ reservation: null, usedTokens: null, hints, isRefused: false }, nowMs);
const spanMs = (atMs: readonly number[]) => atMs.at(-1)! - atMs[0]!;
const requests = (count: number) => new Array<number>(count).fill(1);

describe("without a limit", () => {
  test("a request may always go, and no token is counted", () => {
    const quota = new Quota(NONE);
    expect([quota.isLimited, quota.needsTokens]).toEqual([false, false]);
    expect(spanMs(pass(quota, new Array(1_000).fill(1e6)))).toBe(0);
    expect([quota.isLimited, quota.needsTokens]).toEqual([false, false]);
  });

  test("a refusal changes nothing: how long to leave the target alone is not known here", () => {
    const quota = new Quota(NONE);
    const reservation = quota.take(10, START_MS);
    const refused = { reservation, usedTokens: null, hints: null, isRefused: true };
    quota.settle(refused, START_MS);
    expect(quota.readyAtMs(10, START_MS)).toBe(START_MS);
  });
});

describe("requests a minute", () => {
  test.each([1, 2, 3, 20, 49, 51, 600, 10_000])(
    "of %i: no sixty seconds see more, and 97 percent of it go",
    (limit) => {
      const quota = new Quota({ requestsPerMinute: limit, tokensPerMinute: null });
      const count = limit * 5;
      const wentAtMs = pass(quota, requests(count));
      expect(mostInAMinute(wentAtMs, requests(count))).toBeLessThanOrEqual(limit);
      expect((count - 1) / (spanMs(wentAtMs) / MINUTE_MS || 1)).toBeGreaterThan(limit * 0.97 - 1);
    },
  );

  test("go evenly, also after a rest", () => {
    const quota = new Quota({ requestsPerMinute: 600, tokensPerMinute: null });
    pass(quota, requests(50));
    const wentAtMs = pass(quota, requests(100), START_MS + 10 * MINUTE_MS);
    for (let i = 10; i < 100; i++) expect(wentAtMs[i]! - wentAtMs[i - 10]!).toBeGreaterThan(800);
  });

  test("do not ask for tokens", () => {
    const quota = new Quota({ requestsPerMinute: 60, tokensPerMinute: null });
    expect([quota.isLimited, quota.needsTokens]).toEqual([true, false]);
  });
});

describe("tokens a minute", () => {
  test("no sixty seconds see more than the limit, however large the requests", () => {
    const sizes = fc.array(fc.integer({ min: 1, max: 10_000 }), { minLength: 20, maxLength: 200 });
    fc.assert(
      fc.property(sizes, (tokens) => {
        const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: 10_000 });
        const wentAtMs = pass(quota, tokens);
        expect(mostInAMinute(wentAtMs, tokens)).toBeLessThanOrEqual(10_000 + 1e-3);
      }),
      { numRuns: 50 },
    );
  });

  test("a request larger than the limit goes alone, and those after it wait until it is paid", () => {
    const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: 1_000 });
    const [small, large, next] = pass(quota, [100, 5_000, 100]);
    expect(large! - small!).toBeGreaterThanOrEqual(MINUTE_MS);
    expect(next! - large!).toBeGreaterThan(4.9 * MINUTE_MS);
    expect(next! - large!).toBeLessThan(5.3 * MINUTE_MS);
  });

  test("one that is refused is not paid for longer than a minute", () => {
    const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: 1_000 });
    const reservation = quota.take(5_000_000, START_MS);
    const refused = { reservation, usedTokens: null, hints: null, isRefused: true };
    quota.settle(refused, START_MS);
    const waitMs = quota.readyAtMs(100, START_MS) - START_MS;
    expect(waitMs).toBeGreaterThan(0.9 * MINUTE_MS);
    expect(waitMs).toBeLessThan(1.5 * MINUTE_MS);
  });

  test("estimates that are always wrong by the same factor come to weigh what is used", () => {
    for (const factor of [0.3, 3]) {
      const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: 60_000 });
      let nowMs = START_MS;
      const go = (count: number) => {
        const sinceMs = nowMs;
        for (let i = 0; i < count; i++) {
          nowMs = Math.max(nowMs, quota.readyAtMs(100 * factor, nowMs));
          const reservation = quota.take(100 * factor, nowMs);
          quota.settle({ reservation, usedTokens: 100, hints: null, isRefused: false }, nowMs);
        }
        return (count * MINUTE_MS) / (nowMs - sinceMs);
      };
      go(600);
      expect(go(1_200)).toBeGreaterThan(570);
      expect(go(1_200)).toBeLessThanOrEqual(600);
    }
  });

  test("what was charged for a request that says nothing of its tokens stays charged", () => {
    const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: 1_000 });
    const reservation = quota.take(900, START_MS);
    quota.settle({ reservation, usedTokens: null, hints: null, isRefused: false }, START_MS);
    expect(quota.readyAtMs(900, START_MS)).toBeGreaterThanOrEqual(START_MS + MINUTE_MS);
  });

  test("each request settles what it has taken itself, in whatever order they end, and once", () => {
    const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: 100_000 });
    const early = quota.take(1_000, START_MS);
    const late = quota.take(1_000, START_MS + 50_000);
    const settled = { usedTokens: 0, hints: null, isRefused: false };
    // Were it the other one that is given back, the minute of the early one would end sooner.
    for (let i = 0; i < 3; i++) {
      quota.settle({ ...settled, reservation: late }, START_MS + 51_000);
    }
    expect(quota.readyAtMs(99_000, START_MS + 52_000)).toBeLessThan(START_MS + 55_000);
    expect(quota.readyAtMs(99_500, START_MS + 59_000)).toBeLessThanOrEqual(START_MS + 61_000);
    quota.settle({ ...settled, reservation: early }, START_MS + 59_000);
    expect(quota.readyAtMs(100_000, START_MS + 59_000)).toBeLessThan(START_MS + 61_000);
  });

  test("a quota knows nothing of what was taken from another one", () => {
    const limits = { requestsPerMinute: null, tokensPerMinute: 1_000 };
    const [former, quota] = [new Quota(limits), new Quota(limits)];
    const reservation = former.take(900, START_MS);
    quota.take(900, START_MS);
    quota.settle({ reservation, usedTokens: 0, hints: null, isRefused: false }, START_MS);
    expect(quota.readyAtMs(900, START_MS)).toBeGreaterThanOrEqual(START_MS + MINUTE_MS);
  });
});

describe("limits are learned from answers", () => {
  test("where none is configured", () => {
    const quota = new Quota(NONE);
    told(quota, hintsOf({ requests: { limit: 60, remaining: 60 } }));
    expect([quota.isLimited, quota.needsTokens]).toEqual([true, false]);
    told(quota, hintsOf({ tokens: { limit: 1_000, remaining: 1_000 } }));
    expect(quota.needsTokens).toBe(true);
    expect(spanMs(pass(quota, requests(61)))).toBeGreaterThan(MINUTE_MS);
  });

  test("and the lower one counts, whichever it is", () => {
    const minutesFor120 = (configured: number, said: number) => {
      const quota = new Quota({ requestsPerMinute: configured, tokensPerMinute: null });
      told(quota, hintsOf({ requests: { limit: said, remaining: said } }));
      return Math.round(spanMs(pass(quota, requests(121))) / MINUTE_MS);
    };
    expect([minutesFor120(60, 600), minutesFor120(600, 60), minutesFor120(60, 40)]).toEqual([
      2, 2, 3,
    ]);
  });

  test("but not those of an hour or a day, which show by the time until they are whole", () => {
    const quota = new Quota(NONE);
    const day = { limit: 200, remaining: 199 };
    told(quota, hintsOf({ requests: { ...day, resetMs: 432_000 } }));
    told(quota, hintsOf({ requests: { ...day, resetMs: 30_000 } }));
    expect(quota.isLimited).toBe(false);
  });

  test("and forgotten once no answer has named them for ten minutes", () => {
    const quota = new Quota(NONE);
    told(quota, hintsOf({ requests: { limit: 2, remaining: 2 } }));
    pass(quota, requests(4));
    told(quota, null, START_MS + 10 * MINUTE_MS);
    expect(quota.isLimited).toBe(true);
    told(quota, null, START_MS + 10 * MINUTE_MS + 1);
    expect(quota.isLimited).toBe(false);
    told(quota, hintsOf({ requests: { limit: 2, remaining: 2 } }), START_MS + 10 * MINUTE_MS + 2);
    expect(quota.readyAtMs(1, START_MS + 10 * MINUTE_MS + 2)).toBe(START_MS + 10 * MINUTE_MS + 2);
  });

  test("and kept while the target refuses requests for them", () => {
    const quota = new Quota(NONE);
    told(quota, hintsOf({ requests: { limit: 2, remaining: 2 } }));
    const reservation = quota.take(1, START_MS + 9 * MINUTE_MS);
    const refused = { reservation, usedTokens: null, hints: null, isRefused: true };
    quota.settle(refused, START_MS + 9 * MINUTE_MS);
    told(quota, null, START_MS + 11 * MINUTE_MS);
    expect(quota.isLimited).toBe(true);
  });

  test("a new configuration counts at once, and keeps what was learned", () => {
    const quota = new Quota({ requestsPerMinute: 6, tokensPerMinute: null });
    told(quota, hintsOf({ requests: { limit: 600, remaining: 600 } }));
    quota.setLimits({ requestsPerMinute: null, tokensPerMinute: 5_000 });
    expect(quota.needsTokens).toBe(true);
    expect(spanMs(pass(quota, requests(301)))).toBeLessThan(0.6 * MINUTE_MS);
  });
});

describe("when another client spends too", () => {
  const spanAfter = (remaining: number, resetMs: number) => {
    const quota = new Quota({ requestsPerMinute: 600, tokensPerMinute: null });
    told(quota, hintsOf({ requests: { limit: 600, remaining, resetMs } }));
    return spanMs(pass(quota, requests(21)));
  };

  test("what is left is spread over the time until the limit is whole", () => {
    expect(spanAfter(600, 0)).toBeLessThan(3_000);
    expect(spanAfter(60, 54_000)).toBeGreaterThan(9_000);
  });

  test("what was said to be left is forgotten after a while without answers", () => {
    const waitsMs = spanAfter(0, 60_000);
    expect(waitsMs).toBeGreaterThanOrEqual(10_000);
    expect(waitsMs).toBeLessThan(13_000);
  });

  test("refusals of one second count once, and the share that they cost comes back", () => {
    const quota = new Quota({ requestsPerMinute: 600, tokensPerMinute: null });
    const refuse = (nowMs: number) => {
      const reservation = quota.take(1, nowMs);
      const hints = hintsOf({ requests: { remaining: 0 } });
      quota.settle({ reservation, usedTokens: null, hints, isRefused: true }, nowMs);
    };
    for (let i = 0; i < 5; i++) refuse(START_MS + i * 100);
    const soon = spanMs(pass(quota, requests(61), START_MS + 2_000));
    expect(soon).toBeGreaterThan(6_000 / 0.75);
    expect(soon).toBeLessThan(6_000 / 0.65);
    const later = spanMs(pass(quota, requests(61), START_MS + 2 * MINUTE_MS));
    expect(later).toBeLessThan(6_300);
  });
});

test("a request that sleeps until its instant may go then, whatever was sent and answered before", () => {
  const step = fc.record({
    waitMs: fc.integer({ min: 0, max: 20_000 }),
    estimatedTokens: fc.integer({ min: 0, max: 3_000 }),
    usedTokens: fc.option(fc.integer({ min: 0, max: 9_000 })),
    remaining: fc.option(fc.integer({ min: 0, max: 1_000 })),
    resetMs: fc.option(fc.integer({ min: 0, max: 60_000 })),
    isRefused: fc.boolean(),
    isPatient: fc.boolean(),
  });
  const limit = fc.option(fc.integer({ min: 1, max: 2_000 }));
  fc.assert(
    fc.property(limit, limit, fc.array(step, { maxLength: 40 }), (rpm, tpm, steps) => {
      const quota = new Quota({ requestsPerMinute: rpm, tokensPerMinute: tpm });
      let nowMs = START_MS;
      for (const { waitMs, isPatient, remaining, resetMs, ...sent } of steps) {
        nowMs += waitMs;
        const { estimatedTokens, ...result } = sent;
        const reservation = quota.take(estimatedTokens, nowMs);
        const hint = { limit: 1_000, remaining, resetMs };
        quota.settle({ ...result, reservation, hints: { requests: hint, tokens: hint } }, nowMs);
        const readyAtMs = quota.readyAtMs(500, nowMs);
        expect(readyAtMs).toBeGreaterThanOrEqual(nowMs);
        if (!isPatient) continue;
        for (const part of [0.5, 0.999]) {
          const atMs = Math.floor(nowMs + (readyAtMs - nowMs) * part);
          expect(quota.readyAtMs(500, atMs)).toBeLessThanOrEqual(readyAtMs);
        }
        expect(quota.readyAtMs(500, readyAtMs)).toBe(readyAtMs);
        nowMs = readyAtMs;
      }
    }),
  );
});

describe("a refusal is about the rate", () => {
  const left = (remaining: { requests?: number; tokens?: number }) =>
    hintsOf({
      requests: { limit: 60, remaining: remaining.requests ?? 50 },
      tokens: { limit: 10_000, remaining: remaining.tokens ?? 9_000 },
    });

  test("when no request, or hardly a token, is left", () => {
    expect(isAboutRate(429, left({ requests: 0 }))).toBe(true);
    expect(isAboutRate(429, left({ tokens: 0 }))).toBe(true);
    expect(isAboutRate(429, left({ tokens: 400 }))).toBe(true);
  });

  test("and not when enough is left, nothing is said, or it is no 429", () => {
    expect(isAboutRate(429, left({}))).toBe(false);
    expect(isAboutRate(429, null)).toBe(false);
    expect(isAboutRate(503, left({ requests: 0 }))).toBe(false);
  });
});
