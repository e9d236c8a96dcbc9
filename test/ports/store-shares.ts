import { expect, test } from "vitest";
import type { Store } from "../../src/store/store.ts";
import { at, NOW_MS } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const TTL_MS = 10_000;

interface Need {
  readonly limit?: number;
  readonly wanted?: number;
  readonly held?: number;
}

/** Renews the part of a replica in one target, and returns its slots. */
async function renew(store: Store, owner: string, need: Need = {}): Promise<number | undefined> {
  const { limit = 12, wanted = limit, held = 0 } = need;
  const needs = [{ target: "gpu", limit, wanted, held }];
  return (await store.renewShares({ owner, ttlMs: TTL_MS }, needs))[0]?.slotCount;
}

export function testShares(open: OpenStore): void {
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
    await store.releaseShares("a");
    expect(await renew(store, "b")).toBe(12);
    expect(await renew(at(store, NOW_MS + TTL_MS - 1), "c")).toBe(0);
    expect(await renew(at(store, NOW_MS + TTL_MS), "c")).toBe(12);
  });

  test("the targets have nothing to do with one another", async () => {
    await using opened = await open();
    const { store } = opened;
    const need = { wanted: 4, limit: 4, held: 0 };
    const both = await store.renewShares({ owner: "a", ttlMs: TTL_MS }, [
      { ...need, target: "cpu" },
      { ...need, target: "gpu" },
    ]);
    expect(both.map(({ slotCount }) => slotCount)).toEqual([4, 4]);
    expect(await renew(store, "b", { limit: 4 })).toBe(0);
    expect(await store.renewShares({ owner: "b", ttlMs: TTL_MS }, [])).toEqual([]);
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
}
