import { expect, test } from "vitest";
import type { SlotDemand } from "../../src/batch/slot-share.ts";
import { LEFT_KEPT_MS, type Replica } from "../../src/store/replicas.ts";
import type { Store } from "../../src/store/store.ts";
import { at, NOW_MS } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const TTL_MS = 10_000;

const aReplica = (owner: string, fields: Partial<Replica> = {}): Replica => ({
  owner,
  ttlMs: TTL_MS,
  report: "{}",
  mayKeepHouse: true,
  ...fields,
});

/** Renews the part of a replica in one target, and returns its slots. */
async function renew(
  store: Store,
  owner: string,
  demand: Partial<SlotDemand> = {},
): Promise<number | undefined> {
  const { limit = 12, wanted = limit, held = 0 } = demand;
  const demands = [{ target: "gpu", limit, wanted, held }];
  return (await store.renewReplica(aReplica(owner), demands)).shares[0]?.slotCount;
}

export function testReplicas(open: OpenStore): void {
  test("a lone replica has everything, whatever it wants", async () => {
    const { store } = await open();
    expect(await renew(store, "a", { wanted: 1 })).toBe(12);
  });

  test("a replica that comes has its part once the others have renewed theirs", async () => {
    const { store } = await open();
    expect(await renew(store, "a")).toBe(12);
    expect(await renew(store, "b")).toBe(0);
    expect(await renew(store, "a", { held: 8 })).toBe(6);
    expect(await renew(store, "b")).toBe(4);
    expect(await renew(store, "a", { held: 5 })).toBe(6);
    expect(await renew(store, "b")).toBe(6);
  });

  test("a replica with little to do leaves the rest to the others", async () => {
    const { store } = await open();
    expect(await renew(store, "idle", { wanted: 1 })).toBe(12);
    expect(await renew(store, "busy")).toBe(0);
    expect(await renew(store, "idle", { wanted: 1 })).toBe(1);
    expect(await renew(store, "busy")).toBe(11);
  });

  test("the part of a replica that is gone is free, at once or when its claim ends", async () => {
    const { store } = await open();
    await renew(store, "a");
    expect(await renew(store, "b")).toBe(0);
    await store.releaseReplica("a");
    expect(await renew(store, "b")).toBe(12);
    expect(await renew(at(store, NOW_MS + TTL_MS - 1), "c")).toBe(0);
    expect(await renew(at(store, NOW_MS + TTL_MS), "c")).toBe(12);
  });

  test("a replica that has left, at once or when its claim ended, is listed for five minutes", async () => {
    const { store } = await open();
    await store.renewReplica(aReplica("a", { report: '{"of":"a"}' }), []);
    await store.renewReplica(aReplica("b", { report: '{"of":"b"}' }), []);
    expect(await store.listLeftReplicas()).toEqual([]);
    await store.releaseReplica("a");
    expect(await store.listLeftReplicas()).toEqual([{ owner: "a", report: '{"of":"a"}' }]);
    const later = NOW_MS + TTL_MS;
    const { peers, isHousekeeper } = await at(store, later).renewReplica(aReplica("c"), []);
    expect([peers, isHousekeeper]).toEqual([[], true]);
    const left = await at(store, later).listLeftReplicas();
    expect(left.map(({ owner }) => owner).toSorted()).toEqual(["a", "b"]);
    const owners = (await at(store, NOW_MS + LEFT_KEPT_MS).listLeftReplicas()).map((x) => x.owner);
    expect(owners.toSorted()).toEqual(["b", "c"]);
  });

  test("the targets have nothing to do with one another", async () => {
    const { store } = await open();
    const demand = { wanted: 4, limit: 4, held: 0 };
    const { shares } = await store.renewReplica(aReplica("a"), [
      { ...demand, target: "cpu" },
      { ...demand, target: "gpu" },
    ]);
    expect(shares.map(({ slotCount }) => slotCount)).toEqual([4, 4]);
    expect(await renew(store, "b", { limit: 4 })).toBe(0);
    expect((await store.renewReplica(aReplica("b"), [])).shares).toEqual([]);
  });

  test("of many replicas that join or renew at once, one alone has the housekeeping", async () => {
    const { store } = await open();
    const owners = Array.from({ length: 8 }, (_, i) => `replica-${i}`);
    const renewAll = () =>
      Promise.all(owners.map((owner) => store.renewReplica(aReplica(owner), [])));
    for (let round = 0; round < 20; round++) {
      for (const renewed of [await renewAll(), await renewAll()]) {
        expect(renewed.filter(({ isHousekeeper }) => isHousekeeper)).toHaveLength(1);
      }
      await Promise.all(owners.map((owner) => store.releaseReplica(owner)));
    }
  });
}
