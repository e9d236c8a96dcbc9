/** What the learned limit makes of interactive answers. */
import { describe, expect, test } from "vitest";
import {
  AdaptiveConcurrency,
  type Sample,
} from "../../../../src/upstream/capacity/adaptive/concurrency.ts";
import { seededRandom } from "../../../support/seeded-random.ts";

const START = 16;
const BOUNDS = { min: 1, max: 256 };

const sampleOf = (startedAtMs: number, endedAtMs: number, inFlight: number): Sample => ({
  startedAtMs,
  endedAtMs,
  signal: "good",
  work: 1,
  inFlight,
  ahead: 0,
  pauseMs: 0,
});

/** Asks a server that takes everything, as often as the limit allows. Returns the limit after each answer. */
function ask(policy: AdaptiveConcurrency, count: number, lengthMs: () => number): number[] {
  const underWay: { readonly startedAtMs: number; readonly endedAtMs: number }[] = [];
  let nowMs = 0;
  return Array.from({ length: count }, () => {
    while (underWay.length < policy.limit) {
      underWay.push({ startedAtMs: nowMs, endedAtMs: nowMs + lengthMs() });
    }
    underWay.sort((a, b) => b.endedAtMs - a.endedAtMs);
    const { startedAtMs, endedAtMs } = underWay.pop()!;
    nowMs = endedAtMs;
    policy.noteInteractive(sampleOf(startedAtMs, endedAtMs, underWay.length + 1));
    return policy.limit;
  });
}

describe("answers of very different lengths", () => {
  test.each([1, 2, 3])("take nothing of the limit at the start away (seed %i)", (seed) => {
    const random = seededRandom(seed);
    const limits = ask(new AdaptiveConcurrency(BOUNDS), 5_000, () => 200 * 2_000 ** random());
    expect(Math.min(...limits)).toBe(START);
    expect(Math.max(...limits)).toBeGreaterThan(4 * START);
  });
});

test("a limit that refusals have lowered stays until it is time to ask for more, then rises again", () => {
  const policy = new AdaptiveConcurrency(BOUNDS);
  for (let i = 0; i < START; i++) {
    policy.note({ ...sampleOf(0, 5, START - i), signal: "overloaded", ahead: 4, pauseMs: 1_000 });
  }
  const refused = policy.limit;
  expect(refused).toBeLessThan(START);
  const limits = ask(policy, 5_000, () => 200);
  expect(limits.slice(0, START)).toEqual(Array.from({ length: START }, () => refused));
  expect(limits.at(-1)).toBe(BOUNDS.max);
});

test("a limit below the one at the start, which lines have taught, is not put back to it", () => {
  const served = 4;
  const policy = new AdaptiveConcurrency(BOUNDS);
  const lengthMs = () => 200 * Math.max(1, policy.limit / served);
  let nowMs = 0;
  for (let i = 0; i < 2_000; i++) {
    nowMs += lengthMs() / policy.limit;
    policy.note(sampleOf(nowMs - lengthMs(), nowMs, policy.limit));
  }
  expect(policy.limit).toBeLessThan(2 * served);
  const limits = Array.from({ length: 2_000 }, () => {
    nowMs += lengthMs() / policy.limit;
    policy.noteInteractive(sampleOf(nowMs - lengthMs(), nowMs, policy.limit));
    return policy.limit;
  });
  expect(Math.max(...limits)).toBeLessThan(START);
});
