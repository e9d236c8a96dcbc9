import { setImmediate } from "node:timers/promises";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import {
  AdaptiveConcurrency,
  type Sample,
} from "../../../../src/upstream/capacity/adaptive/concurrency.ts";
import { Simulation } from "../../../support/queueing-simulation.ts";
import { seededRandom } from "../../../support/seeded-random.ts";

const SECOND = 1_000;
const UNBOUNDED = { min: 1, max: 10_000 };
const BOUNDS = { min: 1, max: 512 };

// A simulation never yields, and all of them together take longer than an event loop may stand still.
afterEach(() => setImmediate());

let nowMs = 1_000_000;

/** Samples one after the other, each an answer after 100 ms, with all of the limit in flight. */
function answers(policy: AdaptiveConcurrency, count: number, change: Partial<Sample> = {}): void {
  for (let i = 0; i < count; i++) {
    const startedAtMs = nowMs + 1;
    nowMs = startedAtMs + 100;
    const sample: Sample = {
      startedAtMs,
      endedAtMs: nowMs,
      signal: "good",
      work: 1,
      ahead: 0,
      pauseMs: 0,
      inFlight: policy.limit,
      ...change,
    };
    policy.note(sample);
  }
}

describe("the limit", () => {
  test("starts at 16 and is above 5,000 after ten doublings", () => {
    const policy = new AdaptiveConcurrency({ min: 1, max: 100_000 });
    const limits = new Set([policy.limit]);
    for (let i = 0; i < 60_000 && policy.limit <= 5_000; i++) {
      answers(policy, 1);
      limits.add(policy.limit);
    }
    expect([...limits].slice(0, 3)).toEqual([16, 32, 64]);
    expect(limits.size).toBeLessThanOrEqual(11);
    expect(policy.reason).toBe("climb");
  });

  test("goes to what was admitted when a burst is refused, and no further", () => {
    const policy = new AdaptiveConcurrency(BOUNDS);
    while (policy.limit < 64) answers(policy, 1);
    const startedAtMs = nowMs + 1_000;
    // 40 were admitted; those that are refused end one after the other.
    for (let i = 0; i < 24; i++) {
      const end = { endedAtMs: startedAtMs + 5, inFlight: 64 - i, ahead: 40 };
      answers(policy, 1, { startedAtMs, ...end, signal: "overloaded", pauseMs: 1_000 });
    }
    expect(policy.limit).toBe(40);
    expect(policy.reason).toBe("refused");
  });

  test("climbs again within hours after a refusal that asked for a day", () => {
    const policy = new AdaptiveConcurrency(BOUNDS);
    while (policy.limit < 64) answers(policy, 1);
    const startedAtMs = nowMs + 1_000;
    const end = { startedAtMs, endedAtMs: startedAtMs + 5, inFlight: 16 };
    answers(policy, 16, { ...end, signal: "overloaded", pauseMs: 24 * 60 * 60 * SECOND });
    const refused = policy.limit;
    expect(refused).toBeLessThan(16);
    nowMs += 24 * 60 * 60 * SECOND;
    answers(policy, 200);
    expect(policy.limit).toBeLessThanOrEqual(refused);
    nowMs += 5 * 60 * 60 * SECOND;
    answers(policy, 5_000);
    expect(policy.limit).toBeGreaterThan(64);
  });

  test.each(["overloaded", "timed_out"] as const)("does not move for one %s", (signal) => {
    const policy = new AdaptiveConcurrency(BOUNDS);
    while (policy.limit < 64) answers(policy, 1);
    for (let i = 0; i < 2_000; i++) {
      const before = policy.limit;
      answers(policy, 1, { signal: i % 60 === 59 ? signal : "good" });
      expect(policy.limit).toBeGreaterThanOrEqual(before);
    }
  });

  test("gives up half at the most when all time out together", () => {
    const policy = new AdaptiveConcurrency(BOUNDS);
    while (policy.limit < 64) answers(policy, 1);
    const startedAtMs = nowMs + 1_000;
    const end = { endedAtMs: startedAtMs + 600_000, inFlight: 64 };
    answers(policy, 64, { startedAtMs, ...end, signal: "timed_out" });
    expect(policy.limit).toBeGreaterThanOrEqual(32);
    expect(policy.limit).toBeLessThan(64);
    expect(policy.reason).toBe("timed_out");
  });

  test("does not grow while it is not used", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    while (policy.limit < 500) answers(policy, 1);
    const before = policy.limit;
    answers(policy, 10_000, { inFlight: Math.floor(before / 2) });
    expect(policy.limit).toBeLessThanOrEqual(before);
    expect(policy.limit).toBeGreaterThanOrEqual(before / 2);
  });

  test("does not grow while connections break", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    for (let i = 0; i < 1_000; i++)
      answers(policy, 1, { signal: i % 5 === 0 ? "unclear" : "good" });
    expect(policy.limit).toBe(16);
  });

  test("never leaves its bounds, whatever happens", () => {
    const bounds = fc
      .tuple(fc.integer({ min: 1, max: 50 }), fc.integer({ min: 0, max: 500 }))
      .map(([min, more]) => ({ min, max: min + more }));
    const sample = fc.record({
      startedAtMs: fc.nat(1_000),
      endedAtMs: fc.nat(2_000),
      signal: fc.constantFrom("good", "good", "good", "overloaded", "timed_out", "unclear"),
      work: fc.constantFrom(1, 0.5, 700),
      inFlight: fc.integer({ min: 1, max: 600 }),
      ahead: fc.nat(600),
      pauseMs: fc.constantFrom(0, 0, 1_000),
    }) as fc.Arbitrary<Sample>;
    fc.assert(
      fc.property(
        bounds,
        bounds,
        fc.array(sample, { maxLength: 500 }),
        (first, second, samples) => {
          const policy = new AdaptiveConcurrency(first);
          samples.forEach((each, i) => {
            if (i === 200) policy.setBounds(second);
            if (i === 400) policy.restart();
            policy.note(each);
            const { min, max } = i < 200 ? first : second;
            expect(Number.isInteger(policy.limit)).toBe(true);
            expect(policy.limit).toBeGreaterThanOrEqual(min);
            expect(policy.limit).toBeLessThanOrEqual(max);
          });
        },
      ),
      { seed: 1 },
    );
  });

  test("is fixed where both bounds are the same", () => {
    const policy = new AdaptiveConcurrency({ min: 7, max: 7 });
    answers(policy, 100);
    answers(policy, 30, { startedAtMs: nowMs + 1_000, signal: "overloaded" });
    expect(policy.limit).toBe(7);
  });

  test("keeps what was learned when the bounds change, and starts small after an outage", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    answers(policy, 1_000);
    const learned = policy.limit;
    policy.setBounds({ min: 2, max: 2 * learned });
    expect(policy.limit).toBe(learned);
    policy.setBounds({ min: 2, max: 20 });
    expect(policy.limit).toBe(20);
    policy.restart();
    expect(policy.limit).toBe(16);
  });

  test.each([
    ["one", { min: 1, max: 1 }],
    ["a few", { min: 1, max: 4 }],
  ])("grows within some answers when an operator takes back a maximum of %s", (_, lowered) => {
    const policy = new AdaptiveConcurrency(BOUNDS);
    answers(policy, 1_000);
    policy.setBounds(lowered);
    answers(policy, 20);
    expect(policy.limit).toBe(lowered.max);
    policy.setBounds(BOUNDS);
    answers(policy, 40);
    expect(policy.limit).toBeGreaterThanOrEqual(32);
  });

  test("is not troubled by the milliseconds of its own event loop", () => {
    const random = seededRandom(1);
    const policy = new AdaptiveConcurrency({ min: 1, max: 256 });
    const simulation = new Simulation({
      clients: [{ policy }],
      beyond: "waits",
      capacity: () => 1_000,
      service: () => ({ ms: 0.5 + 12 * random() ** 2, work: 1 }),
    });
    simulation.measure(5 * SECOND);
    expect(simulation.measure(5 * SECOND).clients[0]?.mean).toBeGreaterThan(240);
  });

  test("costs a fast server next to nothing once it has proved right", () => {
    const random = seededRandom(1);
    const policy = new AdaptiveConcurrency({ min: 1, max: 64 });
    const simulation = new Simulation({
      clients: [{ policy }],
      beyond: "waits",
      capacity: () => 1_000,
      service: () => ({ ms: 18 + 4 * random(), work: 1 }),
    });
    simulation.measure(5 * SECOND);
    expect(simulation.measure(20 * SECOND).clients[0]?.mean).toBeGreaterThan(63.5);
  });

  test("lets a single fast server have enough", () => {
    const policy = new AdaptiveConcurrency({ min: 1, max: 256 });
    const simulation = new Simulation({
      clients: [{ policy }],
      beyond: "waits",
      capacity: () => 1,
      service: () => ({ ms: 0.2, work: 1 }),
    });
    simulation.measure(5 * SECOND);
    const seen = simulation.measure(5 * SECOND);
    expect(seen.utilisation).toBeGreaterThan(0.99);
    expect(seen.clients[0]?.mean).toBeGreaterThan(16);
  });
});
