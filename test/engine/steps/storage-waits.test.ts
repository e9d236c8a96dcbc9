import { expect, test } from "vitest";
import type { BatchId } from "../../../src/batch/batch.ts";
import { StorageWaits } from "../../../src/engine/steps/storage-waits.ts";

const failure = (code: string) => Object.assign(new Error(code), { code });
const batch = (status: "validating" | "in_progress" | "finalizing") => ({
  id: `batch_${status}` as BatchId,
  status,
});

function someWaits() {
  const time = { nowMs: 1_000 };
  return { time, waits: new StorageWaits(() => time.nowMs) };
}

const fail = (code: string) => () => Promise.reject(failure(code));

test("a batch of which a claim finds the database full waits since the first such claim", async () => {
  const { time, waits } = someWaits();
  for (time.nowMs of [1_000, 2_000]) {
    await expect(waits.duringClaim("validate", fail("SQLITE_FULL"))).rejects.toThrow();
  }
  expect(waits.find(batch("validating"))).toMatchObject({
    reason: "storage_unavailable",
    sinceMs: 1_000,
  });
  expect(waits.find(batch("finalizing"))).toBeNull();
  expect(waits.find(batch("in_progress"))).toBeNull();
  await waits.duringClaim("validate", async () => null);
  expect(waits.find(batch("validating"))).toBeNull();
});

test("a step that fails for a reason of its own is no wait, and an old wait is forgotten", () => {
  const { time, waits } = someWaits();
  const one = batch("finalizing");
  waits.noteStep(one, failure("ENOSPC"));
  expect(waits.list()).toEqual([[one.id, 1_000, "finalize"]]);
  waits.noteStep(one, new Error("a bug"));
  expect(waits.find(one)).toBeNull();
  waits.noteStep(one, failure("ENOSPC"));
  expect(waits.find({ ...one, status: "in_progress" })).toBeNull();
  time.nowMs += 3_600_000;
  expect(waits.find(one)).toBeNull();
  expect(waits.list()).toEqual([]);
});

test("a wait that another replica has ended is none of the next step", () => {
  const { time, waits } = someWaits();
  const { id } = batch("validating");
  waits.noteStep({ id, status: "validating" }, failure("ENOSPC"));
  expect(waits.find({ id, status: "finalizing" })).toBeNull();
  time.nowMs = 2_000;
  waits.noteStep({ id, status: "finalizing" }, failure("ENOSPC"));
  expect(waits.find({ id, status: "finalizing" })).toMatchObject({ sinceMs: 2_000 });
});
