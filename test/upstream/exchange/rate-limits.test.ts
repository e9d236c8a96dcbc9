import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { rateLimitHints } from "../../../src/upstream/exchange/rate-limits.ts";

const NOTHING = { limit: null, remaining: null, resetMs: null };

describe("what an answer says of its limits", () => {
  test("as OpenAI writes it", () => {
    expect(
      rateLimitHints({
        "content-type": "application/json",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
      }),
    ).toEqual({
      requests: { limit: 60, remaining: 59, resetMs: 1_000 },
      tokens: { limit: 150_000, remaining: 149_984, resetMs: 360_000 },
    });
  });

  test("as Mistral and Cerebras write it, without the limits of a day", () => {
    expect(
      rateLimitHints({
        "x-ratelimit-limit-req-minute": "50",
        "x-ratelimit-remaining-req-minute": "0",
        "x-ratelimit-limit-tokens-minute": "500000",
        "x-ratelimit-remaining-tokens-minute": "499000",
        "x-ratelimit-reset-tokens-minute": "26.5",
      }),
    ).toEqual({
      requests: { limit: 50, remaining: 0, resetMs: null },
      tokens: { limit: 500_000, remaining: 499_000, resetMs: 26_500 },
    });
    expect(
      rateLimitHints({
        "x-ratelimit-limit-requests-day": "14400",
        "x-ratelimit-remaining-requests-day": "14399",
      }),
    ).toBeNull();
  });

  test("is nothing when no header is about them", () => {
    expect(rateLimitHints({})).toBeNull();
    expect(rateLimitHints({ "retry-after": "3", "x-ratelimit-reset-tokens": "1s" })).toBeNull();
  });

  test("of a header that is there twice is what the first one says", () => {
    expect(rateLimitHints({ "x-ratelimit-limit-requests": ["60", "70"] })).toEqual({
      requests: { ...NOTHING, limit: 60 },
      tokens: NOTHING,
    });
  });

  test.each(["", "many", "-1", "1e3", "0x10", "60, 60", "99999999999999999999"])(
    "is nothing where a number should be and %j is",
    (text) => {
      const headers = { "x-ratelimit-limit-tokens": text, "x-ratelimit-remaining-tokens": text };
      expect(rateLimitHints(headers)?.tokens).toEqual(NOTHING);
    },
  );

  test("a limit of zero is none, and nothing left is nothing left", () => {
    const headers = { "x-ratelimit-limit-tokens": "0", "x-ratelimit-remaining-tokens": "0" };
    expect(rateLimitHints(headers)?.tokens).toEqual({ limit: null, remaining: 0, resetMs: null });
  });
});

const resetMsOf = (text: string) =>
  rateLimitHints({ "x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": text })
    ?.requests.resetMs;

test.each([
  ["1s", 1_000],
  ["6m0s", 360_000],
  ["60ms", 60],
  ["1h2m3.5s", 3_723_500],
  ["2m59.56s", 179_560],
  ["1m30s250ms", 90_250],
  ["500µs", 0.5],
  ["1d", 86_400_000],
  ["0s", 0],
  ["10", 10_000],
  [" 0.25 ", 250],
  ["1764000000", null],
  ["2026-11-20T12:00:00Z", null],
  ["5 minutes", null],
  ["ms", null],
  ["-5s", null],
  ["", null],
])("the time %j is %j milliseconds", (text, expectedMs) => {
  if (expectedMs === null) expect(resetMsOf(text)).toBeNull();
  else expect(resetMsOf(text)).toBeCloseTo(expectedMs, 6);
});

test("any duration comes back as it was written", () => {
  const part = (max: number) => fc.integer({ min: 0, max });
  fc.assert(
    fc.property(part(48), part(59), part(59), part(999), (hours, minutes, seconds, ms) => {
      expect(resetMsOf(`${hours}h${minutes}m${seconds}s${ms}ms`)).toBeCloseTo(
        ((hours * 60 + minutes) * 60 + seconds) * 1_000 + ms,
        6,
      );
    }),
  );
});

test("any text at all is a time of zero or more, or none", () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const resetMs = resetMsOf(text) ?? null;
      expect(resetMs === null || (Number.isFinite(resetMs) && resetMs >= 0)).toBe(true);
    }),
  );
});
