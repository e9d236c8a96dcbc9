import { expect, test } from "vitest";
import { canMove, FINAL_STATUSES, isFinal, statusesBefore } from "../../src/batch/status.ts";
import { BATCH_STATUSES } from "../../src/contract/batch.ts";

test("a batch moves only along the documented life", () => {
  const moves = BATCH_STATUSES.flatMap((from) =>
    BATCH_STATUSES.filter((to) => canMove(from, to)).map((to) => `${from} → ${to}`),
  );
  expect(new Set(moves)).toEqual(
    new Set([
      "validating → in_progress",
      "validating → failed",
      "validating → cancelling",
      "validating → expired",
      "in_progress → finalizing",
      "in_progress → cancelling",
      "in_progress → expired",
      "finalizing → completed",
      "finalizing → cancelling",
      "finalizing → in_progress",
      "finalizing → failed",
      "cancelling → cancelled",
    ]),
  );
});

test("the final statuses are those that nothing leaves", () => {
  expect(new Set(FINAL_STATUSES)).toEqual(new Set(["completed", "failed", "expired", "cancelled"]));
  expect(BATCH_STATUSES.filter(isFinal)).toEqual(FINAL_STATUSES);
});

test("every status but the first can be reached from it", () => {
  const reached = new Set<string>(["validating"]);
  for (const from of reached) {
    for (const to of BATCH_STATUSES) if (canMove(from as typeof to, to)) reached.add(to);
  }
  expect(reached).toEqual(new Set(BATCH_STATUSES));
  expect(statusesBefore("validating")).toEqual([]);
});

test("statusesBefore is the move table read backwards", () => {
  for (const to of BATCH_STATUSES) {
    expect(statusesBefore(to)).toEqual(BATCH_STATUSES.filter((from) => canMove(from, to)));
  }
  expect(statusesBefore("cancelling")).toEqual(["validating", "in_progress", "finalizing"]);
});
