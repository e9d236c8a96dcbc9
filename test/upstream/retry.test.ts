import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { NO_USAGE } from "../../src/batch/batch.ts";
import type { Outcome } from "../../src/batch/outcome.ts";
import { CAP_MS, decide, forgiven, NO_ATTEMPTS, PATIENCE_MS } from "../../src/upstream/retry.ts";

const body = Buffer.from("{}");
const answered = (status: number): Outcome => ({
  kind: "answered",
  usage: NO_USAGE,
  status,
  requestId: null,
  body,
});
const overloaded = (status: number, retryAfterMs: number | null = null): Outcome => ({
  ...answered(status),
  kind: "overloaded",
  status,
  requestId: null,
  body,
  retryAfterMs,
});

const NOW = 1_000_000;
const moment = {
  tally: NO_ATTEMPTS,
  nowMs: NOW,
  deadlineAtMs: NOW + 3_600_000,
  random: 0.5,
  isTargetDown: false,
  hasOtherTargets: false,
  hasServedOthers: true,
};
const decideAfter = (outcome: Outcome, changes: Partial<typeof moment> = {}) =>
  decide(outcome, { ...moment, ...changes });

describe("after an attempt", () => {
  test.each([200, 201, 204, 301, 400, 401, 403, 404, 413, 422, 501])(
    "status %i is final",
    (status) => {
      expect(decideAfter(answered(status))).toMatchObject({ do: "record" });
    },
  );

  test.each([408, 409, 424, 500, 502, 504, 520, 599])(
    "status %i is charged to the line",
    (status) => {
      expect(decideAfter(answered(status))).toMatchObject({
        do: "retry",
        tally: { failures: 1, overloads: 0 },
      });
    },
  );

  test.each<Outcome>([
    { kind: "timed_out", afterMs: 5 },
    { kind: "broken", detail: "connection reset" },
  ])("$kind is charged to the line", (outcome) => {
    expect(decideAfter(outcome)).toMatchObject({
      do: "retry",
      tally: { failures: 1, overloads: 0 },
    });
  });

  test.each<Outcome>([
    answered(408),
    answered(502),
    answered(504),
    { kind: "broken", detail: "connection reset" },
  ])(
    "$kind is the target's fault while it serves no other request, and for three hours",
    (outcome) => {
      const tally = { failures: 4, overloads: 7, sinceMs: NOW - 10_000_000 };
      const decided = (changes: Partial<typeof moment>) =>
        decideAfter(outcome, { tally, hasServedOthers: false, ...changes });
      expect(decided({})).toMatchObject({ do: "retry", tally: { failures: 4, overloads: 8 } });
      const later = { nowMs: NOW + 1_000_000, deadlineAtMs: NOW + 3_600_000 };
      expect(decided(later)).toEqual({ do: "record", outcome });
    },
  );

  const about = { requestId: null, detail: "", said: "", body: null };

  test("a refusal of the operator's own key costs a line nothing until the target serves others", () => {
    const refused: Outcome = { kind: "refused", reason: "credentials", status: 401, ...about };
    const tally = { failures: 4, overloads: 7, sinceMs: NOW - 20_000_000 };
    const decided = (hasServedOthers: boolean) => decideAfter(refused, { tally, hasServedOthers });
    expect(decided(false)).toMatchObject({ do: "retry", tally: { failures: 4, overloads: 8 } });
    expect(decided(true)).toEqual({ do: "record", outcome: refused });
  });

  test("a refusal with 429 costs a line nothing, whatever others get", () => {
    const refused: Outcome = { kind: "refused", reason: "quota", status: 429, ...about };
    const tally = { failures: 4, overloads: 7, sinceMs: NOW - 20_000_000 };
    expect(decideAfter(refused, { tally, hasServedOthers: true })).toMatchObject({
      do: "retry",
      tally: { failures: 4, overloads: 8 },
    });
  });

  test.each<Outcome>([
    overloaded(429),
    overloaded(503),
    overloaded(529),
    { kind: "unreachable", detail: "connection refused" },
  ])("$kind $status costs the line nothing", (outcome) => {
    expect(decideAfter(outcome)).toMatchObject({
      do: "retry",
      tally: { failures: 0, overloads: 1 },
    });
  });

  test("interrupted is given back", () => {
    expect(decideAfter({ kind: "interrupted" })).toEqual({ do: "give_back" });
  });

  test("the fifth failure of a line is final, and is what is recorded", () => {
    const tally = { failures: 4, overloads: 100, sinceMs: NOW };
    const outcome = answered(502);
    expect(decideAfter(outcome, { tally })).toEqual({ do: "record", outcome });
    expect(
      decideAfter(outcome, { tally: { failures: 3, overloads: 100, sinceMs: NOW } }),
    ).toMatchObject({
      do: "retry",
    });
  });

  test.each<Outcome>([
    answered(502),
    { kind: "broken", detail: "connection reset" },
    { kind: "timed_out", afterMs: 5 },
  ])("$kind at a target that fails everybody costs the line nothing, for some hours", (outcome) => {
    const tally = { failures: 4, overloads: 0, sinceMs: NOW - PATIENCE_MS + 1 };
    const down = { tally, isTargetDown: true };
    expect(decideAfter(outcome, down)).toMatchObject({
      do: "retry",
      tally: { failures: 4, overloads: 1, sinceMs: tally.sinceMs },
    });
    const tooLong = { ...down, tally: { ...tally, sinceMs: NOW - PATIENCE_MS } };
    expect(decideAfter(outcome, tooLong)).toEqual({ do: "record", outcome });
  });

  test("what a line failed with before its target was found down is forgiven, for some hours", () => {
    const tally = { failures: 4, overloads: 2, sinceMs: NOW - PATIENCE_MS + 1 };
    expect(forgiven(tally, NOW)).toEqual({ ...tally, failures: 0 });
    expect(forgiven(tally, NOW + 1)).toEqual(tally);
  });

  test("a failure without time for another try is final, for it is an answer", () => {
    expect(decideAfter(answered(500), { deadlineAtMs: NOW + 100 })).toMatchObject({ do: "record" });
  });

  test("a wait that the upstream asks for is kept, and ends at the deadline", () => {
    expect(decideAfter(overloaded(429, 20_000))).toMatchObject({ atMs: NOW + 20_250 });
    expect(decideAfter(overloaded(429, 20_000), { deadlineAtMs: NOW + 10_000 })).toMatchObject({
      do: "retry",
      atMs: NOW + 10_000,
    });
  });
});

const anyOutcome: fc.Arbitrary<Outcome> = fc.oneof(
  fc.integer({ min: 200, max: 599 }).map(answered),
  fc
    .tuple(fc.constantFrom(429, 503, 529), fc.option(fc.nat(100_000)))
    .map(([status, hintMs]) => overloaded(status, hintMs)),
  fc.constantFrom<Outcome>(
    { kind: "unreachable", detail: "" },
    { kind: "broken", detail: "" },
    { kind: "timed_out", afterMs: 1 },
    { kind: "interrupted" },
  ),
);
const anyMoment = fc.record({
  tally: fc.record({
    failures: fc.nat(4),
    overloads: fc.nat(5_000),
    sinceMs: fc.option(fc.nat(NOW)),
  }),
  isTargetDown: fc.boolean(),
  hasOtherTargets: fc.boolean(),
  hasServedOthers: fc.boolean(),
  nowMs: fc.constant(NOW),
  deadlineAtMs: fc.integer({ min: NOW + 1, max: NOW + 86_400_000 }),
  random: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
});

test("a retry is never before the hint or now, never after the deadline, never later than the cap beyond the hint", () => {
  fc.assert(
    fc.property(anyOutcome, anyMoment, (outcome, at) => {
      const next = decide(outcome, at);
      if (next.do !== "retry") return;
      const hintMs = outcome.kind === "overloaded" ? (outcome.retryAfterMs ?? 0) : 0;
      const earliestAtMs = Math.min(NOW + hintMs, at.deadlineAtMs);
      expect(next.atMs).toBeGreaterThanOrEqual(earliestAtMs);
      expect(next.atMs).toBeLessThanOrEqual(Math.min(at.deadlineAtMs, NOW + hintMs + CAP_MS));
      const { failures, overloads } = at.tally;
      expect(next.tally.failures + next.tally.overloads).toBe(failures + overloads + 1);
    }),
  );
});

test("any run of outcomes without overload ends after at most five attempts", () => {
  const chargeable = anyOutcome.filter(
    ({ kind }) => kind !== "overloaded" && kind !== "unreachable",
  );
  fc.assert(
    fc.property(fc.array(chargeable, { minLength: 5, maxLength: 5 }), (outcomes) => {
      let tally = NO_ATTEMPTS;
      for (const outcome of outcomes) {
        const next = decideAfter(outcome, { tally });
        if (next.do !== "retry") return true;
        tally = next.tally;
      }
      return false;
    }),
  );
});
