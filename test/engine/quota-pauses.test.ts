import { expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { rulesFrom } from "../../src/batch/project.ts";
import { endQuotaPauses } from "../../src/engine/quota-pauses.ts";
import type { QuotaPause } from "../../src/store/spending.ts";
import { Events } from "../support/events.ts";

test("a server that closes leaves the other paused batches to its next start", async () => {
  const resumed: string[] = [];
  const pauseAt = (sequence: number): QuotaPause => ({
    sequence,
    batchId: `batch_${sequence}` as BatchId,
    project: "default",
    reason: "tokens_per_day",
    sinceMs: 0,
    limit: "1",
  });
  const store = {
    listQuotaPauses: async (after: number) => [pauseAt(after + 1), pauseAt(after + 2)],
    resumeBatchIfPaused: async ({ id }: { id: string }) => resumed.push(id) > 0,
  };
  let isTold = false;
  const onResumed = () => {
    isTold = true;
  };
  const rulesOf = () => rulesFrom({ weight: 1, models: ["*"], quotas: {} });
  const { log } = new Events();
  // The list has no end: a pass that does not look at the drain would never end.
  const isDraining = () => resumed.length === 3;
  await endQuotaPauses({ store, rulesOf, log, onResumed }, { nowMs: 1, isDraining });
  expect(resumed).toEqual(["batch_1", "batch_2", "batch_3"]);
  expect(isTold).toBe(true);
});
