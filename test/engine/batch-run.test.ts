/** A failed step counts against its batch only where the work failed, and is not tried again before its lease is over. */
import { expect, test } from "vitest";
import { runStep } from "../../src/engine/batch-run.ts";
import { StorageWaits } from "../../src/engine/storage-waits.ts";
import { leasesBench } from "../support/leases.ts";
import { claimBy, insertBatch, LEASE_TTL_MS } from "../support/store-builders.ts";
import { unobserved } from "../support/unobserved.ts";

const failing = (code: string | undefined) => async () => {
  throw Object.assign(new Error("it failed"), { code });
};

test("a step that fails is over when its lease is, and counts unless the machine was short of something", async () => {
  await using bench = await leasesBench();
  const { store, leases, clock } = bench;
  const { batch } = await insertBatch(store);
  const storageWaits = new StorageWaits(() => clock.nowMs());
  const deps = { store, leases, storageWaits, ...unobserved() };
  const claim = () => store.claimBatchToValidate(claimBy("us"));
  /** Returns how often the step had failed before. */
  const run = async (work: () => Promise<unknown>) => {
    const claimed = (await claim())!;
    await runStep(claimed, { name: "batch.validate", work, describe: () => ({}) }, deps);
    return claimed.failureCount;
  };
  const waitsFor = () => storageWaits.find(batch)?.reason;

  await expect(run(failing("ENOSPC"))).rejects.toThrow("it failed");
  expect([await claim(), waitsFor()]).toEqual([null, "storage_unavailable"]);
  clock.advance(LEASE_TTL_MS);
  await expect(run(failing(undefined))).rejects.toThrow("it failed");
  expect([await claim(), waitsFor()]).toEqual([null, undefined]);
  clock.advance(LEASE_TTL_MS);
  expect(await run(async () => {})).toBe(1);
});
