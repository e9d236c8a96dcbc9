/** Which batches are known to fail because of one mistake, and how many of them are remembered. */
import { expect, test } from "vitest";
import { FIRST_LINES } from "../../../src/batch/failures.ts";
import { failureOf } from "../../../src/batch/line-failure.ts";
import type { FinalOutcome } from "../../../src/batch/outcome.ts";
import { CommonFailures } from "../../../src/engine/chunks/common-failures.ts";
import { Events } from "../../support/events.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { aBatch } from "../../support/store-builders.ts";

const answered = (status: number, body: object): FinalOutcome => ({
  kind: "answered",
  status,
  requestId: null,
  body: Buffer.from(JSON.stringify(body)),
  usage: aBatch().usage,
});
const WRONG = answered(400, { error: { code: "invalid_value", message: "m".repeat(1_000) } });
const REFUSED: FinalOutcome = {
  kind: "refused",
  reason: "credentials",
  status: 401,
  requestId: null,
  detail: "status 401 for this model",
  said: "",
  body: Buffer.from('{"error":{"code":"unknown_model","message":"m"}}'),
};
const ALIKE = [
  ["request_timeout", { kind: "timed_out", afterMs: 1 } as const, null],
  ["upstream_error", { kind: "broken", detail: "it is not JSON" } as const, null],
  ["unknown_model", REFUSED, 401],
  ["invalid_value", WRONG, 400],
] as const;

const OTHERS: Record<string, FinalOutcome> = {
  success: answered(200, {}),
  "other status": answered(500, { error: { code: "invalid_value" } }),
  "other code": answered(400, { error: { code: "another" } }),
  "outcome without an answer": { kind: "timed_out", afterMs: 1 },
};

function noted(outcomes: readonly FinalOutcome[], batch = aBatch()) {
  const events = new Events();
  const failures = new CommonFailures({ log: events.log, clock: new FakeClock() });
  for (const outcome of outcomes) failures.note(batch, outcome);
  return { failures, found: failures.find(batch.id), events };
}

const times = (count: number, outcome: FinalOutcome) => Array<FinalOutcome>(count).fill(outcome);

test.each(ALIKE)(
  "so many lines that end with %s are one mistake, and not one line less",
  (code, outcome, statusCode) => {
    expect(noted(times(FIRST_LINES - 1, outcome)).found).toBeNull();
    const { found, events } = noted(times(2 * FIRST_LINES, outcome));
    expect(found).toMatchObject({ lineCount: FIRST_LINES, statusCode, code });
    expect(failureOf(outcome)).toEqual({ status: statusCode, code });
    expect(found?.message).toMatch(/^.{1,200}$/);
    expect(events.count("batch.failing_alike")).toBe(1);
  },
);

test.each(Object.entries(OTHERS))(
  "a single %s before them means that the file is not at fault",
  (_name, other) => {
    for (const at of [0, 1, FIRST_LINES - 1]) {
      const outcomes = times(2 * FIRST_LINES, WRONG).with(at, other);
      expect(noted(outcomes).found).toBeNull();
    }
  },
);

test("a batch of which lines had ended before is not judged by those that follow", () => {
  const batch = aBatch({ counts: { total: 100, completed: 1, failed: 0 } });
  expect(noted(times(FIRST_LINES, WRONG), batch).found).toBeNull();
});

test("other replicas learn of the latest batches only, and for some minutes", () => {
  const clock = new FakeClock();
  const failures = new CommonFailures({ log: new Events().log, clock });
  const batches = Array.from({ length: 60 }, () => aBatch());
  for (const batch of batches)
    for (const each of times(FIRST_LINES, WRONG)) failures.note(batch, each);
  expect(failures.list().map(([id]) => id)).toEqual(batches.slice(10).map(({ id }) => id));
  clock.advance(299_999);
  expect(failures.list()).toHaveLength(50);
  clock.advance(1);
  expect(failures.list()).toEqual([]);
});

test("the batches that are remembered are bounded, and the oldest are forgotten first", () => {
  const failures = new CommonFailures({ log: new Events().log, clock: new FakeClock() });
  const [oldest, second] = [aBatch(), aBatch()];
  for (const batch of [oldest, second])
    for (const each of times(FIRST_LINES, WRONG)) failures.note(batch, each);
  for (let n = 0; n < 9_999; n++) failures.note(aBatch(), WRONG);
  expect(failures.find(oldest.id)).toBeNull();
  expect(failures.find(second.id)).not.toBeNull();
});
