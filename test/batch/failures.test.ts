import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  addFailures,
  type FailureGroup,
  MAX_FAILURE_GROUPS,
  removeFailures,
} from "../../src/batch/failures.ts";
import { failureOf } from "../../src/batch/line-failure.ts";
import type { FinalOutcome } from "../../src/batch/outcome.ts";

const sum = (groups: readonly FailureGroup[]) =>
  groups.reduce((total, { count }) => total + count, 0);

const group = fc.record({
  status: fc.option(fc.integer({ min: 400, max: 410 })),
  code: fc.option(fc.constantFrom("a", "b", "c", "d", "e")),
  count: fc.integer({ min: 1, max: 50 }),
});
const parts = fc.array(fc.array(group, { maxLength: 8 }), { maxLength: 12 });

describe("groups of failures", () => {
  test("sum up to what was added, in at most 20 groups, each once, the largest first and all others last", () => {
    fc.assert(
      fc.property(parts, (added) => {
        const groups = added.reduce<readonly FailureGroup[]>(addFailures, []);
        expect(sum(groups)).toBe(sum(added.flat()));
        expect(groups.length).toBeLessThanOrEqual(MAX_FAILURE_GROUPS);
        const keys = groups.map(({ status, code }) => `${status} ${code}`);
        expect(new Set(keys).size).toBe(keys.length);
        const named = groups.filter(({ status, code }) => status !== null || code !== null);
        expect(named).toEqual(named.toSorted((a, b) => b.count - a.count));
        expect(groups.slice(0, named.length)).toEqual(named);
      }),
    );
  });

  test("lose what is taken out of them, also when it was counted among the others", () => {
    fc.assert(
      fc.property(parts, (added) => {
        let groups = added.reduce<readonly FailureGroup[]>(addFailures, []);
        for (const part of added.toReversed()) {
          const before = sum(groups);
          groups = removeFailures(groups, part);
          // The group of all others may have too few lines, and none may be counted below zero.
          expect(sum(groups)).toBeGreaterThanOrEqual(before - sum(part));
          expect(groups.every(({ count }) => count > 0)).toBe(true);
        }
      }),
    );
    const few = [{ status: 400, code: "a", count: 2 }];
    const more = [{ status: null, code: "b", count: 1 }];
    expect(removeFailures(addFailures(few, more), more)).toEqual(few);
  });

  test("take lines whose group is not listed any more out of the one of all others", () => {
    const few = { status: 400, code: "a", count: 2 };
    const others = { status: null, code: null, count: 5 };
    const unlisted = { status: 500, code: "b", count: 3 };
    expect(removeFailures([few, others], [unlisted])).toEqual([few, { ...others, count: 2 }]);
  });
});

const answered = (body: string): FinalOutcome => ({
  kind: "overloaded",
  status: 429,
  requestId: null,
  retryAfterMs: null,
  body: Buffer.from(body),
});

test.each([
  ['{"error":{"code":"too_long"}}', "too_long"],
  ['{"code":400}', "400"],
  ['{"error":"text"}', null],
  ['{"error":null}', null],
  ["[]", null],
  ["no JSON", null],
  [`{"error":{"code":"${"x".repeat(100)}"}}`, "x".repeat(64)],
  [`{"error":{"code":"far","message":"${"x".repeat(70_000)}"}}`, null],
  ['{"error":{"code":"\\ud800"}}', "\ufffd"],
])("the code of %s is %s", (body, code) => {
  expect(failureOf(answered(body))).toEqual({ status: 429, code });
});

test("a line without an answer has the code of its row", () => {
  expect(failureOf({ kind: "timed_out", afterMs: 1 })).toEqual({
    status: null,
    code: "request_timeout",
  });
});
