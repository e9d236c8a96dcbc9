import { expect, test } from "vitest";
import type { Outcome } from "../../../src/batch/outcome.ts";
import { CircuitBreaker, type Evidence } from "../../../src/upstream/capacity/breaker.ts";

const failure: Outcome = { kind: "unreachable", detail: "connection refused" };

/** A breaker in virtual time, whose dice are 0. */
function setUp() {
  const breaker = new CircuitBreaker();
  let nowMs = 1_000_000;
  return {
    breaker,
    pass: (ms: number) => {
      nowMs += ms;
    },
    /** An attempt that starts and ends now. */
    attempt: (evidence: Evidence) => {
      breaker.pass(nowMs);
      return breaker.note(evidence, { startedAtMs: nowMs, nowMs, random: 0 }, failure);
    },
    late: (evidence: Evidence, startedAgoMs: number) =>
      breaker.note(evidence, { startedAtMs: nowMs - startedAgoMs, nowMs, random: 0 }, failure),
    waitMs: () => breaker.readyAtMs() - nowMs,
    backoffMs: () => breaker.backoffUntilMs - nowMs,
  };
}

test("five attempts in a row without a connection open it", () => {
  const { breaker, attempt } = setUp();
  for (let i = 0; i < 4; i++) expect(attempt("down")).toBe(false);
  expect(attempt("down")).toBe(true);
  expect(breaker.circuit).toBe("open");
});

test("a small batch of lines that cause doubtful failures does not open it, a large one does", () => {
  const { breaker, attempt } = setUp();
  for (let i = 0; i < 49; i++) attempt("doubtful");
  expect(breaker.circuit).toBe("closed");
  attempt("doubtful");
  expect(breaker.circuit).toBe("open");
});

test("it is in doubt where lines may be to blame, but not where an interactive request would hang", () => {
  const broken = { kind: "broken", detail: "the connection broke" } as const;
  const hanging = { kind: "timed_out", afterMs: 1_000 } as const;
  for (const [outcome, isInDoubt] of [
    [broken, true],
    [hanging, false],
  ] as const) {
    const breaker = new CircuitBreaker();
    const ended = { startedAtMs: 1_000, nowMs: 1_000, random: 0 };
    for (let i = 0; i < 49; i++) breaker.note("doubtful", ended, outcome);
    expect(breaker.isInDoubt).toBe(false);
    breaker.note("doubtful", ended, outcome);
    expect([breaker.circuit, breaker.isInDoubt]).toEqual(["open", isInDoubt]);
  }
});

test("a good answer starts the count anew", () => {
  const { breaker, attempt } = setUp();
  for (let i = 0; i < 20; i++) attempt(i % 4 === 3 ? "good" : "down");
  expect(breaker.circuit).toBe("closed");
});

test("refusals do not open it while answers come that were under way with the last good one", () => {
  const { breaker, attempt, late, pass } = setUp();
  late("good", 2_000);
  for (let i = 0; i < 500; i++) attempt("full");
  pass(2_000);
  attempt("full");
  expect(breaker.circuit).toBe("closed");
  // Nothing good has come although it should have.
  pass(1);
  for (let i = 0; i < 50; i++) attempt("full");
  expect(breaker.circuit).toBe("open");
});

test("while it is open nothing goes; then one probe at a time, less and less often up to half a minute", () => {
  const { breaker, attempt, pass, waitMs } = setUp();
  for (let i = 0; i < 5; i++) attempt("down");
  const waitsMs = Array.from({ length: 9 }, () => {
    const ms = waitMs();
    pass(ms);
    expect(waitMs()).toBe(0);
    attempt("down");
    return ms;
  });
  expect(waitsMs).toEqual([500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
  expect(breaker.circuit).toBe("open");
});

test("while a probe is under way no other request goes", () => {
  const { breaker, attempt, pass, waitMs, late } = setUp();
  for (let i = 0; i < 5; i++) attempt("down");
  pass(500);
  breaker.pass(breaker.backoffUntilMs);
  expect(breaker.circuit).toBe("half_open");
  expect(waitMs()).toBe(Number.POSITIVE_INFINITY);
  expect(late("good", 0)).toBe(true);
  expect(breaker.circuit).toBe("closed");
  expect(waitMs()).toBe(Number.NEGATIVE_INFINITY);
});

test("a probe that was broken off lets the next one go at once", () => {
  const { breaker, attempt, pass, waitMs } = setUp();
  for (let i = 0; i < 5; i++) attempt("down");
  pass(500);
  attempt("nothing");
  expect([breaker.circuit, waitMs()]).toEqual(["open", 0]);
});

test("what started before it opened cannot open it again, and may close it", () => {
  const { breaker, attempt, pass, late } = setUp();
  for (let i = 0; i < 5; i++) attempt("down");
  for (let i = 0; i < 100; i++) late("down", 10);
  expect(breaker.backoffUntilMs).toBe(1_000_500);
  expect(late("good", 10)).toBe(true);
  pass(10);
  for (let i = 0; i < 100; i++) late("down", 20);
  expect(breaker.circuit).toBe("closed");
});

test("several processes do not probe in the same moment", () => {
  const probesAtMs = [0, 0.5, 0.99].map((random) => {
    const breaker = new CircuitBreaker();
    for (let i = 0; i < 5; i++) breaker.note("down", { startedAtMs: 0, nowMs: 0, random }, failure);
    return breaker.backoffUntilMs;
  });
  expect(probesAtMs).toEqual([500, 550, 599]);
});

test.for(["down", "full", "refused"] as const)(
  "while it is closed, an attempt that is %s begins a backoff, which is longer each time",
  (evidence) => {
    const { breaker, attempt, pass, backoffMs, waitMs } = setUp();
    const backoffsMs = Array.from({ length: 3 }, () => {
      attempt(evidence);
      const ms = backoffMs();
      pass(ms);
      return ms;
    });
    expect(backoffsMs).toEqual([500, 1_000, 2_000]);
    // A request without another target may go all the same.
    expect([breaker.circuit, waitMs()]).toEqual(["closed", Number.NEGATIVE_INFINITY]);
  },
);

test("attempts that fail together begin one backoff, and doubtful ones none", () => {
  const { attempt, backoffMs, pass } = setUp();
  for (let i = 0; i < 10; i++) attempt("doubtful");
  expect(backoffMs()).toBe(Number.NEGATIVE_INFINITY);
  for (let i = 0; i < 4; i++) attempt("full");
  expect(backoffMs()).toBe(500);
  pass(500);
  attempt("full");
  expect(backoffMs()).toBe(1_000);
});

test("after a good answer backoffs are short again", () => {
  const { attempt, backoffMs, pass } = setUp();
  for (let i = 0; i < 4; i++) {
    attempt("down");
    pass(backoffMs());
  }
  attempt("good");
  attempt("down");
  expect(backoffMs()).toBe(500);
});

test("failures of attempts that started before it opened begin no backoff after it has closed", () => {
  const { attempt, backoffMs, late, pass } = setUp();
  for (let i = 0; i < 5; i++) attempt("down");
  pass(500);
  attempt("good");
  late("down", 501);
  expect(backoffMs()).toBe(0);
});

test("it knows why it is not closed, and three failures in a row are no chance", () => {
  const { breaker, attempt } = setUp();
  attempt("full");
  attempt("doubtful");
  expect(breaker.isFailing).toBe(false);
  attempt("doubtful");
  expect([breaker.isFailing, breaker.lastFailure]).toEqual([true, failure]);
  attempt("nothing");
  expect(breaker.isFailing).toBe(true);
  attempt("good");
  expect(breaker.isFailing).toBe(false);
});
