/** A failed step counts against its batch only where the work failed, and is not tried again before its lease is over. */
import { expect, test } from "vitest";
import { runStep } from "../../../src/engine/steps/batch-run.ts";
import { StorageWaits } from "../../../src/engine/steps/storage-waits.ts";
import { createBatch } from "../../support/batches.ts";
import { blobsAround, GatedBlobs } from "../../support/gated-blobs.ts";
import { leasesBench } from "../../support/leases.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { claimBy, insertBatch, LEASE_TTL_MS } from "../../support/store-builders.ts";
import { unobserved } from "../../support/unobserved.ts";
import { startUpstream } from "../../support/upstream.ts";

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

/** They are on a share or in a bucket, where a missing one is looked for again. */
class SharedBlobs extends GatedBlobs {
  override get mayBeBehind(): boolean {
    return true;
  }
}

test.each(["files/", "journal/"])(
  "a batch that is deleted while its %s is read is no failure of the server",
  async (prefix) => {
    const wrapped = blobsAround(SharedBlobs);
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      openStorage: wrapped.open,
    });
    const { reads } = wrapped.blobs();
    const input = await service.upload(chatLines(3));
    reads.close(prefix);
    const { id } = await createBatch(service.openai, input);
    await reads.reached();
    const path = `${service.url}/v1/batches/${id}?files=input`;
    expect((await fetch(path, { method: "DELETE" })).status).toBe(200);
    await service.events.reached("batch.removed", { batch: id });
    await service.events.reached("file.removed", { file: input });
    reads.open();
    const failures = () => service.events.count("loop.pass_failed");
    const isLeaseLost = async () => {
      const metrics = await (await fetch(`${service.url}/metrics`)).text();
      return /batchd_lease_changes_total\{[^}]*kind="batch"[^}]*change="lost"[^}]*\} [1-9]/.test(
        metrics,
      );
    };
    await expect.poll(async () => failures() > 0 || (await isLeaseLost())).toBe(true);
    expect(failures()).toBe(0);
  },
);
