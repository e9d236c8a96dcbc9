import { describe, expect, test } from "vitest";
import { Quota } from "../../../src/upstream/capacity/rate/quota.ts";
import {
  type Load,
  RateLimitedUpstream,
  run,
  type Tally,
} from "../../support/rate-limited-upstream.ts";
import { MINUTE_MS, type RateRule } from "../../support/rate-limits.ts";
import { seededRandom } from "../../support/seeded-random.ts";

/** The upstreams enforce rates, each in its own way. The first minute does not count: there is learning in it. */

const KINDS: readonly RateRule[] = ["token_bucket", "fixed_window", "sliding_window"];
const LOAD: Load = {
  seed: 1,
  concurrency: 500,
  latencyMs: [200, 10_000],
  tokens: [100, 4_000],
  misjudged: [0.3, 3],
  isTold: true,
  minutes: 9,
};
const SEEDS = [1, 20];
const KNOWN = ["configured", "learned", "both"] as const;

interface Limits {
  readonly rpm: number;
  readonly tpm: number;
}

const PLENTY = 100_000_000;
const UPSTREAMS: Readonly<Record<string, Limits & { readonly load?: Partial<Load> }>> = {
  "600 requests a minute": { rpm: 600, tpm: PLENTY },
  "20 requests a minute": { rpm: 20, tpm: PLENTY },
  "a million tokens a minute": { rpm: PLENTY, tpm: 1_000_000 },
  "a million tokens a minute, estimated far too high": {
    rpm: PLENTY,
    tpm: 1_000_000,
    load: { misjudged: [2, 4] },
  },
  "a million tokens a minute, estimated far too low": {
    rpm: PLENTY,
    tpm: 1_000_000,
    load: { misjudged: [0.25, 0.5] },
  },
  "a million tokens a minute, answered slowly": {
    rpm: PLENTY,
    tpm: 1_000_000,
    load: { concurrency: 2_000, latencyMs: [2_000, 40_000] },
  },
  "1000 requests and 600,000 tokens a minute": { rpm: 1_000, tpm: 600_000 },
};

function quotaOf({ rpm, tpm }: Limits, known: (typeof KNOWN)[number]): Quota {
  const isConfigured = known !== "learned";
  return new Quota({
    requestsPerMinute: isConfigured ? rpm : null,
    tokensPerMinute: isConfigured ? tpm : null,
  });
}

const sum = (tallies: readonly Tally[], key: keyof Tally) =>
  tallies.reduce((total, tally) => total + tally[key], 0);
const refusedOf = (tallies: readonly Tally[]) => sum(tallies, "refused") / sum(tallies, "sent");

/** The share of what the upstream allows in so many minutes, by the limit that is nearest. */
function achieved(tallies: readonly Tally[], { rpm, tpm }: Limits, minutes: number): number {
  return Math.max(
    sum(tallies, "taken") / minutes / rpm,
    sum(tallies, "takenTokens") / minutes / tpm,
  );
}

describe.each(KINDS)("an upstream that counts by a %s", (kind) => {
  describe.each(Object.entries(UPSTREAMS))("with %s", (_, { load, ...limits }) => {
    test.each(KNOWN)("refuses less than 1 in 100 and is used at 90 percent, limits %s", (known) => {
      for (const seed of SEEDS) {
        const isTold = known !== "configured";
        const upstream = new RateLimitedUpstream(kind, limits);
        const tallies = run(upstream, [quotaOf(limits, known)], { ...LOAD, ...load, seed, isTold });
        expect(refusedOf(tallies)).toBeLessThan(0.01);
        expect(achieved(tallies, limits, LOAD.minutes - 1)).toBeGreaterThan(0.9);
      }
    });
  });

  describe.each([
    { rpm: 600, tpm: PLENTY },
    { rpm: PLENTY, tpm: 1_000_000 },
  ])("shared by two with $rpm requests and $tpm tokens a minute", (limits) => {
    test.each(KNOWN)("refuses few and serves both, limits %s", (known) => {
      for (const seed of SEEDS) {
        const upstream = new RateLimitedUpstream(kind, limits);
        const quotas = [quotaOf(limits, known), quotaOf(limits, known)];
        const isTold = known !== "configured";
        const tallies = run(upstream, quotas, { ...LOAD, seed, isTold, minutes: 21 });
        const [less, more] = tallies.map((tally) => tally.taken).sort((a, b) => a - b);
        // Where the upstream does not tell, it takes some refusals to be sure that another client spends.
        expect(refusedOf(tallies)).toBeLessThan(isTold ? 0.025 : 0.045);
        expect(less! / more!).toBeGreaterThan(0.6);
        expect(achieved(tallies, limits, 20)).toBeGreaterThan(0.75);
      }
    });
  });
});

test("an upstream that refuses and says nothing finds no quota in the way", () => {
  const limits = { rpm: 600, tpm: PLENTY };
  const upstream = new RateLimitedUpstream("fixed_window", limits);
  const quota = new Quota({ requestsPerMinute: null, tokensPerMinute: null });
  const load = {
    ...LOAD,
    isTold: false,
    concurrency: 10,
    latencyMs: [200, 400] as const,
    minutes: 3,
  };
  const tallies = run(upstream, [quota], load);
  expect(refusedOf(tallies)).toBeGreaterThan(0.1);
  expect(achieved(tallies, limits, 2)).toBeGreaterThan(0.98);
  expect(quota.isLimited).toBe(false);
});

/** Some requests never reach the limits, because a busy proxy refuses them. */
class BehindBusyProxy extends RateLimitedUpstream {
  readonly #random = seededRandom(7);

  override accept(tokens: number, nowMs: number) {
    if (this.#random() >= 0.01) return super.accept(tokens, nowMs);
    return { ...super.accept(PLENTY + 1, nowMs), isTaken: false };
  }
}

test.each(KINDS)("scattered refusals leave a configured rate as it is, counted by a %s", (kind) => {
  for (const rpm of [300, 3_000]) {
    const limits = { rpm, tpm: PLENTY };
    const quota = quotaOf(limits, "configured");
    const load = { ...LOAD, isTold: false, minutes: 21 };
    const tallies = run(new BehindBusyProxy(kind, limits), [quota], load);
    expect(refusedOf(tallies)).toBeLessThan(0.015);
    expect(achieved(tallies, limits, 20)).toBeGreaterThan(0.9);
  }
});

test("a quota is found free again when the one that shared it has gone", () => {
  const limits = { rpm: 600, tpm: PLENTY };
  const upstream = new RateLimitedUpstream("token_bucket", limits);
  const load = { ...LOAD, isTold: false, minutes: 4 };
  const stays = quotaOf(limits, "configured");
  run(upstream, [stays, quotaOf(limits, "configured")], load);
  const startMs = 29_000_010 * MINUTE_MS;
  let nowMs = startMs;
  for (let i = 0; i < 580; i++) {
    nowMs = Math.max(nowMs, stays.readyAtMs(1, nowMs));
    stays.take(1, nowMs);
  }
  expect(nowMs - startMs).toBeLessThan(MINUTE_MS);
});
