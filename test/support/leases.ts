import { join } from "node:path";
import { Leases } from "../../src/engine/steps/lease.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { FakeClock } from "./fake-clock.ts";
import { claimFirst, NOW_MS, startBatch, temporaryFolder } from "./store-builders.ts";
import { unobserved } from "./unobserved.ts";

/**
 * The leases of one process on a store that has a batch with chunks of two routes, without the loops around them. The process may
 * have a clock of its own.
 */
export async function leasesBench(ownClock?: FakeClock) {
  const dir = temporaryFolder("batchd-leases-");
  const clock = new FakeClock(NOW_MS);
  const opened = await openSqliteStore({ path: join(dir.path, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const leases = new Leases({
    store,
    clock: ownClock ?? clock,
    owner: "us",
    stopGraceMs: 5_000,
    leaseTtlMs: 30_000,
    ...unobserved(),
  });
  const { batch } = await startBatch(store, ["a", "b"]);
  const claim = async (route: string) =>
    claimFirst(store, { ...(await leases.claim()), batchId: batch.id, model: route });
  return {
    store,
    clock,
    leases,
    batch,
    claim,
    async [Symbol.asyncDispose]() {
      await store.close();
      dir[Symbol.dispose]();
    },
  };
}
