import { expect, test } from "vitest";
import type { BatchId } from "../../../src/batch/batch.ts";
import { rulesFrom } from "../../../src/batch/project.ts";
import { endQuotaPauses } from "../../../src/engine/housekeeping/quota-pauses.ts";
import type { QuotaPause } from "../../../src/store/spending.ts";
import { Events } from "../../support/events.ts";

const pauseAt = (sequence: number): QuotaPause => ({
  sequence,
  batchId: `batch_${sequence}` as BatchId,
  project: "default",
  reason: "tokens_per_day",
  sinceMs: 0,
  limit: "1",
});

const rulesOf = () => rulesFrom({ weight: 1, models: ["*"], quotas: {} });

test("a server that closes leaves the other paused batches to its next start", async () => {
  const resumed: string[] = [];
  const store = {
    listQuotaPauses: async (after: number) => [pauseAt(after + 1), pauseAt(after + 2)],
    resumeBatchIfPaused: async ({ id }: { id: string }) => resumed.push(id) > 0,
  };
  let isTold = false;
  const onResumed = () => {
    isTold = true;
  };
  const { log } = new Events();
  // The list has no end: a pass that does not look at the drain would never end.
  const isDraining = () => resumed.length === 3;
  await endQuotaPauses({ store, rulesOf, log, onResumed }, { nowMs: 1, isDraining });
  expect(resumed).toEqual(["batch_1", "batch_2", "batch_3"]);
  expect(isTold).toBe(true);
});

test("where the pauses of very many batches end, a pass ends early and asks for another, as windows end in between", async () => {
  const paused = new Set(Array.from({ length: 1_200 }, (_, i) => i + 1));
  const store = {
    listQuotaPauses: async (after: number) =>
      [...paused].filter((sequence) => sequence > after).map(pauseAt),
    resumeBatchIfPaused: async ({ id }: { id: string }) =>
      paused.delete(Number(id.slice("batch_".length))),
  };
  const deps = { store, rulesOf, log: new Events().log, onResumed: () => {} };
  const passes: (readonly [boolean, number])[] = [];
  for (let n = 0; n < 4; n++) {
    const hasMore = await endQuotaPauses(deps, { nowMs: 1, isDraining: () => false });
    passes.push([hasMore, paused.size]);
  }
  expect(passes).toEqual([
    [true, 700],
    [true, 200],
    [false, 0],
    [false, 0],
  ]);
});
