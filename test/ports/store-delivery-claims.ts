import { expect, test } from "vitest";
import { CANCELLED } from "../../src/batch/delivery.ts";
import type { DeliveryLease } from "../../src/store/deliveries.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aDelivery,
  BUCKET,
  CLAIM,
  claimed,
  claimOne,
  completedBatch,
  DOWN,
  dueDelivery,
  find,
  HOUR_MS,
  ids,
  scoped,
} from "../support/delivery-builders.ts";
import { AFTER_LEASES_MS, at, LEASE_TTL_MS, NOW_MS } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

export function testDeliveryClaims(open: OpenStore): void {
  testClaims(open);
  testEnds(open);
}

function testClaims(open: OpenStore): void {
  test("a claim has the batch, its files and what the attempt before left, and counts as an attempt", async () => {
    const { store } = await open();
    const { batch, output, error, delivery } = await dueDelivery(store, { credentials: "sealed" });
    const first = await claimOne(store);
    expect(first).toMatchObject({
      delivery: { id: delivery.id, attemptCount: 1, status: "delivering" },
      batch: { id: batch.id },
      destination: "location:share",
      credentials: "sealed",
      progress: null,
    });
    expect([first.output, first.error]).toEqual([output, error]);
    expect(await store.saveDeliveryProgressIfLeased(first.lease, "half")).toBe(true);
    expect(
      await store.postponeDeliveryIfLeased(first.lease, { ms: 0, withinMs: HOUR_MS, error: DOWN }),
    ).toBe("postponed");
    expect(await find(store, batch, delivery)).toMatchObject({ status: "pending", error: DOWN });
    expect(await claimOne(store)).toMatchObject({
      progress: "half",
      delivery: { attemptCount: 2 },
    });
  });

  test("of many runners that claim at once, each delivery has one", async () => {
    const { store } = await open();
    const { batch } = await completedBatch(store);
    const made = Array.from({ length: 6 }, (_, i) => aDelivery({ location: `place-${i}` }));
    for (const each of made) await store.insertDeliveryIfFinal(scoped(batch.id), each);
    const claims = await Promise.all(
      Array.from({ length: 8 }, (_, i) => store.claimDelivery({ ...CLAIM, owner: `runner-${i}` })),
    );
    expect(ids(claims.flatMap((each) => each?.delivery ?? [])).toSorted()).toEqual(
      ids(made).toSorted(),
    );
  });

  test("deliveries to a busy place wait and hold up no other", async () => {
    const { store } = await open();
    const slow = await dueDelivery(store, { location: "slow" });
    const quick = await dueDelivery(store, { location: "quick" });
    const free = await claimed(store, { busyDestinations: ["location:slow"] });
    expect(ids(free.map((each) => each.delivery))).toEqual([quick.delivery.id]);
    expect(ids((await claimed(store)).map((each) => each.delivery))).toEqual([slow.delivery.id]);
  });

  test("deliveries to buckets of clients wait when there is no room for them", async () => {
    const { store } = await open();
    const bucket = await dueDelivery(store, { location: null, s3: BUCKET, credentials: "sealed" });
    const share = await dueDelivery(store);
    const claim = async (toClientBuckets: boolean) =>
      ids((await claimed(store, { toClientBuckets })).map((each) => each.delivery));
    expect(await claim(false)).toEqual([share.delivery.id]);
    expect(await claim(true)).toEqual([bucket.delivery.id]);
  });

  test("deliveries of a project without room to buckets of clients wait and hold up no other", async () => {
    const { store } = await open();
    const bucket = { location: null, s3: BUCKET, credentials: "sealed" };
    const { batch, delivery } = await dueDelivery(store, bucket);
    const share = await dueDelivery(store);
    const claim = async (busyProjects: string[]) =>
      ids((await claimed(store, { busyProjects })).map((each) => each.delivery));
    expect(await claim([batch.project])).toEqual([share.delivery.id]);
    expect(await claim(["another"])).toEqual([delivery.id]);
  });

  test("deliveries of a project that is passed over wait, wherever they go", async () => {
    const { store } = await open();
    const { batch } = await dueDelivery(store);
    await dueDelivery(store, { location: null, s3: BUCKET, credentials: "sealed" });
    expect(await claimed(store, { passedOver: [batch.project] })).toEqual([]);
    expect(await claimed(store, { passedOver: ["another"] })).toHaveLength(2);
  });

  test("a lease that was not renewed is claimed again, and its former holder changes nothing", async () => {
    const { store } = await open();
    const { batch, delivery } = await dueDelivery(store);
    const { lease: stale } = await claimOne(store);
    expect(await claimed(at(store, AFTER_LEASES_MS - 1))).toEqual([]);
    expect(await store.renewDeliveryIfLeased(stale, LEASE_TTL_MS)).toBe("renewed");
    expect(await claimed(at(store, AFTER_LEASES_MS))).toEqual([]);
    at(store, AFTER_LEASES_MS + LEASE_TTL_MS);
    const { lease } = await claimOne(store);
    expect(await writesOf(store, stale)).toEqual(["lost", false, false, "lost", false]);
    expect(await find(store, batch, delivery)).toMatchObject({ status: "delivering", error: null });
    await store.endDeliveryIfLeased(lease, { status: "delivered", address: "there" });
    expect(await writesOf(store, lease)).toEqual(["lost", false, false, "lost", false]);
    expect(await find(store, batch, delivery)).toMatchObject({ status: "delivered" });
  });

  test("an attempt that is given back did not count, and is due at once", async () => {
    const { store } = await open();
    await dueDelivery(store);
    const { lease } = await claimOne(store);
    expect(await store.releaseDeliveryIfLeased(lease)).toBe(true);
    expect(await claimOne(store)).toMatchObject({ delivery: { attemptCount: 1 } });
  });
}

async function writesOf(store: Store, lease: DeliveryLease) {
  return [
    await store.renewDeliveryIfLeased(lease, LEASE_TTL_MS),
    await store.saveDeliveryProgressIfLeased(lease, "late"),
    await store.releaseDeliveryIfLeased(lease),
    await store.postponeDeliveryIfLeased(lease, { ms: 0, withinMs: HOUR_MS, error: DOWN }),
    await store.endDeliveryIfLeased(lease, { status: "failed", error: DOWN }),
  ];
}

function testEnds(open: OpenStore): void {
  test("a delivery is tried again until its time is over, counted from when it was due", async () => {
    const { store } = await open();
    await dueDelivery(store);
    const again = { ms: HOUR_MS / 2, withinMs: HOUR_MS, error: DOWN };
    const postpone = async () =>
      store.postponeDeliveryIfLeased((await claimOne(store)).lease, again);
    expect(await postpone()).toBe("postponed");
    expect(await claimed(at(store, NOW_MS + HOUR_MS / 2 - 1))).toEqual([]);
    at(store, NOW_MS + HOUR_MS / 2);
    expect(await postpone()).toBe("postponed");
    at(store, NOW_MS + HOUR_MS);
    expect(await postpone()).toBe("too_late");
  });

  test.each(["delivered", "failed"] as const)(
    "a delivery that has %s has no credentials and no progress any more, also after a restart",
    async (status) => {
      const opened = await open();
      const { store } = opened;
      const { batch, delivery } = await dueDelivery(store, { credentials: "sealed" });
      const { lease } = await claimOne(store);
      await store.saveDeliveryProgressIfLeased(lease, "half");
      const end =
        status === "failed"
          ? ({ status, error: DOWN } as const)
          : ({ status, address: "s3://b" } as const);
      expect(await store.endDeliveryIfLeased(lease, end)).toBe(true);
      const reopened = await opened.reopen();
      expect(await find(reopened, batch, delivery)).toMatchObject({ ...end, endedAtMs: NOW_MS });
      expect(await claimed(reopened)).toEqual([]);
    },
  );

  test("a deleted batch takes its deliveries with it, and one that has left nothing at once", async () => {
    const { store } = await open();
    const { batch, delivery } = await dueDelivery(store);
    await store.deleteBatchIfPresent(scoped(batch.id), { withInput: false });
    expect(await find(store, batch, delivery)).toBeNull();
    expect(await claimed(store)).toEqual([]);
    await store.forgetBatch(batch.id);
    expect(await store.listDeletedBatches(10)).toEqual([]);
  });

  test("a delivery of a deleted batch that has begun is cancelled, and the batch stays until it has cleaned up", async () => {
    const { store } = await open();
    const { batch } = await dueDelivery(store, { credentials: "sealed" });
    const { lease } = await claimOne(store);
    await store.saveDeliveryProgressIfLeased(lease, "half");
    await store.postponeDeliveryIfLeased(lease, {
      ms: HOUR_MS,
      withinMs: 24 * HOUR_MS,
      error: DOWN,
    });
    await store.deleteBatchIfPresent(scoped(batch.id), { withInput: false });
    const again = await claimOne(store);
    expect(again).toMatchObject({
      progress: "half",
      credentials: "sealed",
      batch: { id: batch.id },
    });
    expect(again.delivery.error).toEqual(CANCELLED);
    expect(await store.renewDeliveryIfLeased(again.lease, LEASE_TTL_MS)).toBe("cancelled");
    expect(await store.listDeletedBatches(10)).toEqual([]);
    await store.forgetBatch(batch.id);
    await store.endDeliveryIfLeased(again.lease, { status: "failed", error: CANCELLED });
    expect(await store.listDeletedBatches(10)).toEqual([batch.id]);
    await store.forgetBatch(batch.id);
    expect(await store.listDeletedBatches(10)).toEqual([]);
  });
}
