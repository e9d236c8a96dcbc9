import { expect, test } from "vitest";
import type { Replica } from "../../src/store/replicas.ts";
import type { Store } from "../../src/store/store.ts";
import { at, NOW_MS } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const TTL_MS = 10_000;

interface Need {
  readonly limit?: number;
  readonly wanted?: number;
  readonly held?: number;
}

const aReplica = (owner: string, fields: Partial<Replica> = {}): Replica => ({
  ...{ owner, ttlMs: TTL_MS, report: "{}", mayKeepHouse: true },
  ...fields,
});

/** Renews the part of a replica in one target, and returns its slots. */
async function renew(store: Store, owner: string, need: Need = {}): Promise<number | undefined> {
  const { limit = 12, wanted = limit, held = 0 } = need;
  const needs = [{ target: "gpu", limit, wanted, held }];
  return (await store.renewReplica(aReplica(owner), needs)).shares[0]?.slotCount;
}

export function testReplicas(open: OpenStore): void {
  test("a lone replica has everything, whatever it wants", async () => {
    await using opened = await open();
    expect(await renew(opened.store, "a", { wanted: 1 })).toBe(12);
  });

  test("a replica that comes has its part once the others have renewed theirs", async () => {
    await using opened = await open();
    const { store } = opened;
    expect(await renew(store, "a")).toBe(12);
    expect(await renew(store, "b")).toBe(0);
    expect(await renew(store, "a", { held: 8 })).toBe(6);
    expect(await renew(store, "b")).toBe(4);
    expect(await renew(store, "a", { held: 5 })).toBe(6);
    expect(await renew(store, "b")).toBe(6);
  });

  test("a replica with little to do leaves the rest to the others", async () => {
    await using opened = await open();
    const { store } = opened;
    expect(await renew(store, "idle", { wanted: 1 })).toBe(12);
    expect(await renew(store, "busy")).toBe(0);
    expect(await renew(store, "idle", { wanted: 1 })).toBe(1);
    expect(await renew(store, "busy")).toBe(11);
  });

  test("the part of a replica that is gone is free, at once or when its claim ends", async () => {
    await using opened = await open();
    const { store } = opened;
    await renew(store, "a");
    expect(await renew(store, "b")).toBe(0);
    await store.releaseReplica("a");
    expect(await renew(store, "b")).toBe(12);
    expect(await renew(at(store, NOW_MS + TTL_MS - 1), "c")).toBe(0);
    expect(await renew(at(store, NOW_MS + TTL_MS), "c")).toBe(12);
  });

  test("the targets have nothing to do with one another", async () => {
    await using opened = await open();
    const { store } = opened;
    const need = { wanted: 4, limit: 4, held: 0 };
    const { shares } = await store.renewReplica(aReplica("a"), [
      { ...need, target: "cpu" },
      { ...need, target: "gpu" },
    ]);
    expect(shares.map(({ slotCount }) => slotCount)).toEqual([4, 4]);
    expect(await renew(store, "b", { limit: 4 })).toBe(0);
    expect((await store.renewReplica(aReplica("b"), [])).shares).toEqual([]);
  });

  test("of many replicas that renew at once, all together have no more than there is", async () => {
    await using opened = await open();
    const { store } = opened;
    const owners = Array.from({ length: 8 }, (_, i) => `replica-${i}`);
    let slotCounts: (number | undefined)[] = [];
    for (let round = 0; round < 3; round++) {
      slotCounts = await Promise.all(owners.map((owner) => renew(store, owner, { limit: 20 })));
      const sum = slotCounts.reduce((total: number, each) => total + (each ?? 0), 0);
      expect(sum).toBeLessThanOrEqual(20);
    }
    expect(slotCounts.every((each) => each === 2 || each === 3)).toBe(true);
  });

  test("a replica sees the latest reports of the others, until their claims end", async () => {
    await using opened = await open();
    const { store } = opened;
    const renewAs = async (owner: string, report: string) =>
      (await store.renewReplica(aReplica(owner, { report }), [])).peers;
    expect(await renewAs("a", "first")).toEqual([]);
    expect(await renewAs("b", "of b")).toEqual([{ owner: "a", report: "first" }]);
    await renewAs("a", "second");
    expect(await renewAs("c", "of c")).toEqual([
      { owner: "a", report: "second" },
      { owner: "b", report: "of b" },
    ]);
    await store.releaseReplica("b");
    expect((await renewAs("a", "third")).map(({ owner }) => owner)).toEqual(["c"]);
    at(store, NOW_MS + TTL_MS);
    expect(await renewAs("a", "fourth")).toEqual([]);
  });

  test("the housekeeping is the duty of one, and of the next one when that one goes or dies", async () => {
    await using opened = await open();
    const { store } = opened;
    const isHousekeeper = async (owner: string, fields: Partial<Replica> = {}) =>
      (await store.renewReplica(aReplica(owner, fields), [])).isHousekeeper;
    expect(await isHousekeeper("ending", { mayKeepHouse: false })).toBe(false);
    expect(await isHousekeeper("z")).toBe(true);
    expect(await isHousekeeper("a")).toBe(false);
    expect(await isHousekeeper("b")).toBe(false);
    expect(await isHousekeeper("z")).toBe(true);
    // It ends by itself.
    expect(await isHousekeeper("z", { mayKeepHouse: false })).toBe(false);
    expect(await isHousekeeper("b")).toBe(false);
    expect(await isHousekeeper("a")).toBe(true);
    // It dies.
    at(store, NOW_MS + TTL_MS - 1);
    expect(await isHousekeeper("b")).toBe(false);
    at(store, NOW_MS + TTL_MS);
    expect(await isHousekeeper("b")).toBe(true);
    expect(await isHousekeeper("a")).toBe(false);
  });

  test("a renewal says what time it is in the store", async () => {
    await using opened = await open();
    expect((await opened.store.renewReplica(aReplica("a"), [])).nowMs).toBe(NOW_MS);
  });

  test("of many replicas that renew at once, one alone has the housekeeping", async () => {
    await using opened = await open();
    const { store } = opened;
    const owners = Array.from({ length: 8 }, (_, i) => `replica-${i}`);
    for (let round = 0; round < 2; round++) {
      const renewed = await Promise.all(
        owners.map((owner) => store.renewReplica(aReplica(owner), [])),
      );
      expect(renewed.filter(({ isHousekeeper }) => isHousekeeper)).toHaveLength(1);
    }
  });
}
