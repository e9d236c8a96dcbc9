/** The list of what can be claimed follows every change, and names a model that no target serves once. */
import { expect, test } from "vitest";
import type { BatchId } from "../../../src/batch/batch.ts";
import { type Listed, RunnableList } from "../../../src/engine/dispatch/runnable-list.ts";
import type { RunnableChunks } from "../../../src/store/chunks.ts";
import { Events } from "../../support/events.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { aRoute, someWork } from "../../support/runnable-work.ts";

const POLL_EVERY_MS = 5_000;

/** A list of work for two models on one route and of one that is served elsewhere, or nowhere. */
function listBench() {
  const clock = new FakeClock();
  const events = new Events();
  const route = aRoute();
  const bench = {
    work: [] as readonly RunnableChunks[],
    atRisk: [] as readonly BatchId[],
    isElsewhere: false,
    onList: () => {},
  };
  const list = new RunnableList({
    store: {
      listRunnable: async () => {
        const { work } = bench;
        bench.onList();
        return work;
      },
      listBatchesAtRisk: async () => bench.atRisk,
    } as ConstructorParameters<typeof RunnableList>[0]["store"],
    upstreams: {
      findRoute: (model) => (model.startsWith("llama") ? route : null),
      isServedElsewhere: () => bench.isElsewhere,
    },
    clock,
    log: events.log,
    pollEveryMs: POLL_EVERY_MS,
  });
  /** Resolves to the new list; null when none was due. */
  const refresh = async (): Promise<Listed | null> => {
    let found: Listed | null = null;
    await list.refreshIfDue(async (listed) => {
      found = listed;
    });
    return found;
  };
  return Object.assign(bench, { clock, events, route, list, refresh });
}

test("chunks are grouped by the route of their model, in the order of the store", async () => {
  const bench = listBench();
  bench.work = ["llama-1", "other", "llama-2", "llama-1"].map((model) => someWork({ model }));
  const listed = await bench.refresh();
  const [one, , two, three] = bench.work;
  expect([...listed!.byRoute]).toEqual([[bench.route, [one, two, three]]]);
});

test("a list is made again when something has changed, also during the last one, and when it is old", async () => {
  const bench = listBench();
  const { clock, list, refresh } = bench;
  expect(await refresh()).not.toBeNull();
  expect(await refresh()).toBeNull();
  list.noteChange();
  bench.onList = () => {
    list.noteChange();
    bench.onList = () => {};
  };
  expect(await refresh()).not.toBeNull();
  expect(await refresh()).not.toBeNull();
  expect(await refresh()).toBeNull();
  clock.advance(POLL_EVERY_MS);
  expect(await refresh()).not.toBeNull();
  list.discard();
  expect(await refresh()).not.toBeNull();
});

test("a model that no replica serves is logged once until it is served again, here or by another replica", async () => {
  const bench = listBench();
  const { list, refresh, events } = bench;
  const again = async (work: readonly RunnableChunks[]) => {
    bench.work = work;
    list.noteChange();
    await refresh();
    return events.count("route.unserved", { model: "gone" });
  };
  const gone = [someWork({ model: "gone" }), someWork({ model: "gone" })];
  bench.isElsewhere = true;
  expect(await again(gone)).toBe(0);
  bench.isElsewhere = false;
  expect([await again(gone), await again(gone)]).toEqual([1, 1]);
  expect([await again([]), await again(gone)]).toEqual([1, 2]);
});

test("which batches are at risk is asked again within a second of changes", async () => {
  const bench = listBench();
  const { clock, list, refresh } = bench;
  const id = "batch_1" as BatchId;
  await refresh();
  bench.atRisk = [id];
  list.noteChange();
  expect((await refresh())?.isAtRisk(id)).toBe(false);
  clock.advance(1_000);
  list.noteChange();
  expect((await refresh())?.isAtRisk(id)).toBe(true);
});
