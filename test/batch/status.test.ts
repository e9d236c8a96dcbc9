import { expect, test } from "vitest";
import { canMove, FINAL_STATUSES, isFinal } from "../../src/batch/status.ts";
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
