/** The quotas that a store counts by itself, and what lines under way may use. */
import { expect, test } from "vitest";
import { at, NOW_MS } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

let slotCount = 0;
const aSlot = (project = "search") => ({ id: `slot-${++slotCount}`, project });

export function testQuotas(open: OpenStore): void {
  test("of 50 interactive requests at once exactly as many get a slot as there are", async () => {
    const { store } = await open();
    const limits = { limit: 7, ttlMs: 1_000 };
    const taken = await Promise.all(
      Array.from({ length: 50 }, () => store.takeInteractiveSlot(aSlot(), limits)),
    );
    expect(taken.filter(Boolean)).toHaveLength(7);
    expect(await store.takeInteractiveSlot(aSlot("other"), limits)).toBe(true);
  });

  test("an interactive slot is free again when it is released, or not renewed in time", async () => {
    const { store } = await open();
    const limits = { limit: 2, ttlMs: 1_000 };
    const take = () => store.takeInteractiveSlot(aSlot(), limits);
    const [kept, lost] = [aSlot(), aSlot()];
    expect(await store.takeInteractiveSlot(kept, limits)).toBe(true);
    expect(await store.takeInteractiveSlot(lost, limits)).toBe(true);
    expect(await take()).toBe(false);
    at(store, NOW_MS + 900);
    await store.renewInteractiveSlots([kept.id, "slot-unknown"], 1_000);
    expect(await take()).toBe(false);
    at(store, NOW_MS + 1_000);
    expect(await take()).toBe(true);
    expect(await take()).toBe(false);
    await store.releaseInteractiveSlot(kept.id);
    await store.releaseInteractiveSlot(kept.id);
    expect(await take()).toBe(true);
    expect(await take()).toBe(false);
  });

  test("requests that come around the end of a minute in any order get two limits at the most", async () => {
    const { store } = await open();
    const endMs = Math.ceil(NOW_MS / 60_000) * 60_000 + 60_000;
    let takenCount = 0;
    for (const dateMs of Array.from({ length: 20 }, (_, n) => (n % 2 === 0 ? endMs : endMs - 1))) {
      at(store, dateMs);
      if ((await store.takeRequest("around the end", 3)).isGranted) takenCount++;
    }
    expect(takenCount).toBeGreaterThanOrEqual(3);
    expect(takenCount).toBeLessThanOrEqual(6);
  });

  test("a clock that was set back by more than a minute does not keep requests waiting", async () => {
    const { store } = await open();
    expect(await store.takeRequest("set back", 1)).toMatchObject({ isGranted: true });
    expect(await store.takeRequest("set back", 1)).toMatchObject({ isGranted: false });
    at(store, NOW_MS - 3_600_000);
    expect(await store.takeRequest("set back", 1)).toMatchObject({ isGranted: true, remaining: 0 });
    expect(await store.takeRequest("set back", 1)).toMatchObject({ isGranted: false });
  });

  test("the date of the store is the one by which it decides", async () => {
    const { store } = await open();
    at(store, NOW_MS + 1_234);
    expect(await store.readDateMs()).toBe(NOW_MS + 1_234);
  });
}
