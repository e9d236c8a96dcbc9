/** Work is done by the replica that holds its lease: see test/support/replicas.ts. */

import { setImmediate } from "node:timers/promises";
import Database from "better-sqlite3";
import { expect, test, vi } from "vitest";
import { Leases } from "../../../src/engine/steps/lease.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { leasesBench } from "../../support/leases.ts";
import {
  HEARTBEAT_MS,
  LEASE_OVER_MS,
  type Replica,
  type Replicas,
  startReplicas,
} from "../../support/replicas.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { claimBy, claimFirst, NOW_MS } from "../../support/store-builders.ts";
import { unobserved } from "../../support/unobserved.ts";
import { startUpstream, type TestUpstream } from "../../support/upstream.ts";

const ALL_ONCE = { total: 4, completed: 4, failed: 0 };

/** A batch whose four lines replica `a` has sent, while their answers are held back. */
async function sentByA(replicas: Replicas, upstream: TestUpstream) {
  upstream.hold();
  const batch = await replicas.a.service.submit(chatLines(4));
  await upstream.reached(4);
  return batch;
}

/** A batch whose input replica `a` is reading, and gets no further until its reads are opened. */
async function validatedByA({ a }: Replicas) {
  a.blobs.reads.close("files/");
  const batch = await a.service.submit(chatLines(4));
  await a.blobs.reads.reached();
  return batch;
}

/** Its requests have come to the upstream, while those of `a` are still there. */
async function takeOver({ clock }: Replica, upstream: TestUpstream): Promise<void> {
  clock.advance(LEASE_OVER_MS);
  await upstream.reached(8);
}

/** Waits until every lease on a chunk, or on a batch, lasts that long. */
async function leasesLastUntil(
  atMs: number,
  { dataDir }: Replicas,
  table: "batches" | "chunks" = "chunks",
): Promise<void> {
  const database = new Database(`${dataDir}/batchd.sqlite`, { readonly: true });
  const first = database.prepare(`select min(lease_expires_at_ms) from ${table}`).pluck();
  while (Number(first.get()) < atMs) await setImmediate();
  database.close();
}

test("a replica that pauses is told at its next renewal that its lease is lost, and aborts what is in flight", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await sentByA(replicas, upstream);
  await takeOver(b, upstream);
  expect(upstream.inFlight).toBe(8);

  a.clock.advance(HEARTBEAT_MS);
  await a.service.events.reached("chunk.ended", { batch: id, ended: "lease" });
  expect(await a.lostLeases("chunk")).toBe(1);
  // Its requests are gone, not only left alone.
  while (upstream.inFlight > 4) await setImmediate();

  upstream.release();
  const batch = await b.service.ended(id);
  expect(batch.request_counts).toEqual(ALL_ONCE);
  expect(await b.service.rows(batch.output_file_id)).toHaveLength(4);
  expect(upstream.total).toBe(8);
});

test("a lease that is renewed goes to no other replica, however long the answers take", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await sentByA(replicas, upstream);
  for (let n = 0; n < 9; n++) {
    a.clock.advance(HEARTBEAT_MS);
    await leasesLastUntil(a.clock.nowMs() + LEASE_OVER_MS - HEARTBEAT_MS, replicas);
    b.clock.advance(HEARTBEAT_MS);
    // A batch of its own makes `b` look at what there is to claim.
    const { id: probe } = await b.service.submit(chatLines(1));
    await upstream.reached(4 + n + 1);
    await b.service.openai.batches.cancel(probe);
  }
  expect(b.service.events.count("chunk.claimed", { batch: id })).toBe(0);

  upstream.release();
  const batch = await a.service.ended(id);
  expect(batch.request_counts).toEqual(ALL_ONCE);
  // The first one is the line of the other batches too.
  expect([2, 3, 4].map((n) => upstream.received.get(`line-${n}`))).toEqual([1, 1, 1]);
});

test("after a pause of the machine a replica does not take its work from itself", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a } = replicas;
  const { id } = await sentByA(replicas, upstream);

  // No time elapses in a machine that is suspended, but the date is another one afterwards.
  a.clock.setBy(60 * 60 * 1000);
  a.clock.advance(HEARTBEAT_MS);
  await leasesLastUntil(a.clock.nowMs(), replicas);
  upstream.release();
  const batch = await a.service.ended(id);

  expect(batch.request_counts).toEqual(ALL_ONCE);
  expect(upstream.total).toBe(4);
  expect(await a.lostLeases("chunk")).toBe(0);
});

test("what a replica gives back when it leaves goes on elsewhere at once, not when a lease runs out", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await sentByA(replicas, upstream);

  await a.service.close();
  upstream.release();
  b.clock.advance(1_000);
  await upstream.reached(8);

  const batch = await b.service.ended(id);
  expect(batch.request_counts).toEqual(ALL_ONCE);
});

test("a batch that is cancelled at one replica stops at the other with its next renewal", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await sentByA(replicas, upstream);

  await b.service.openai.batches.cancel(id);
  a.clock.advance(HEARTBEAT_MS);
  await a.service.events.reached("chunk.ended", { batch: id, ended: "batch" });

  const batch = await a.service.ended(id);
  expect(batch.status).toBe("cancelled");
  const rows = await a.service.rows(batch.error_file_id);
  expect(rows.map(({ error }) => error?.code)).toEqual(Array(4).fill("batch_cancelled"));
});

test("a batch that is cancelled while the holder of its lines is gone ends when their lease is over", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { b } = replicas;
  const { id } = await sentByA(replicas, upstream);

  await b.service.openai.batches.cancel(id);
  b.clock.advance(LEASE_OVER_MS);
  const batch = await b.service.ended(id);

  expect(batch.status).toBe("cancelled");
  expect(await b.service.rows(batch.error_file_id)).toHaveLength(4);
  expect(upstream.total).toBe(4);
});

test("a replica that pauses while it validates does not start the batch a second time", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await validatedByA(replicas);
  b.clock.advance(LEASE_OVER_MS);
  const batch = await b.service.ended(id);
  expect(batch.request_counts).toEqual(ALL_ONCE);

  a.blobs.reads.open();
  a.clock.advance(HEARTBEAT_MS);
  // Only once the first validation is over `a` claims another batch with the same loop.
  await expect.poll(() => a.lostLeases("batch")).toBe(1);
  expect(a.service.events.count("batch.started", { batch: id })).toBe(0);
  expect(upstream.total).toBe(4);
});

test("a batch whose validation takes longer than a lease stays with the replica that validates it", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await validatedByA(replicas);
  for (let n = 0; n < 6; n++) {
    a.clock.advance(HEARTBEAT_MS);
    await leasesLastUntil(a.clock.nowMs() + LEASE_OVER_MS - HEARTBEAT_MS, replicas, "batches");
    b.clock.advance(HEARTBEAT_MS);
  }
  a.blobs.reads.open();

  await a.service.events.reached("batch.started", { batch: id });
  expect((await a.service.ended(id)).request_counts).toEqual(ALL_ONCE);
  expect(b.service.events.count("batch.started")).toBe(0);
  expect(upstream.total).toBe(4);
});

test("a lease is over by the clock of the store, whatever date the machines of its workers show", async () => {
  await using bench = await leasesBench();
  const { leases, clock, store, batch, claim } = bench;
  const ahead = new FakeClock(NOW_MS + 60 * 60 * 1000);
  const parts = {
    store,
    clock: ahead,
    owner: "they",
    stopGraceMs: 5_000,
    leaseTtlMs: 30_000,
    ...unobserved(),
  };
  const others = new Leases(parts);
  const claimToo = async () =>
    claimFirst(store, { ...(await others.claim()), batchId: batch.id, model: "a" });
  const run = leases.holdChunk((await claim("a"))!.lease, null);
  ahead.advance(60 * 60 * 1000);
  expect(await claimToo()).toBeNull();
  await leases.renew();
  expect(run.endReason).toBeNull();

  clock.advance(LEASE_OVER_MS);
  expect(await claimToo()).not.toBeNull();
});

test("a claim after a pause comes after the renewal, even when the claim is the first to wake", async () => {
  await using bench = await leasesBench();
  const { leases, clock, claim } = bench;
  const held = await claim("a");
  const run = leases.holdChunk(held!.lease, null);
  clock.advance(60 * 60 * 1000);
  expect(await claim("a")).toBeNull();
  expect(run.endReason).toBeNull();
});

test("a lease from before the date was set right is renewed before the next claim", async () => {
  await using bench = await leasesBench();
  const { leases, clock, claim } = bench;
  clock.setBy(-60 * 60 * 1000);
  const held = await claim("a");
  const run = leases.holdChunk(held!.lease, null);
  clock.setBy(60 * 60 * 1000);
  expect(await claim("a")).toBeNull();
  expect(run.endReason).toBeNull();
});

test("a claim comes after a late renewal, also where the date was set back meanwhile", async () => {
  const ownClock = new FakeClock(NOW_MS);
  await using bench = await leasesBench(ownClock);
  const { leases, clock, claim } = bench;
  const run = leases.holdChunk((await claim("a"))!.lease, null);
  clock.advance(LEASE_OVER_MS);
  ownClock.advance(LEASE_OVER_MS);
  ownClock.setBy(-LEASE_OVER_MS);
  expect(await claim("a")).toBeNull();
  expect(run.endReason).toBeNull();
});

test("a renewal that finds a lease lost leaves the run under a later one alone", async () => {
  await using bench = await leasesBench();
  const { leases, clock, store, batch } = bench;
  const claim = () => claimFirst(store, { ...claimBy("us"), batchId: batch.id, model: "a" });
  leases.holdChunk((await claim())!.lease, null);
  clock.advance(LEASE_OVER_MS);
  const { renewLeases } = store;
  const isHeld = Promise.withResolvers<void>();
  vi.spyOn(store, "renewLeases").mockImplementationOnce(async (...asked) => {
    await isHeld.promise;
    return renewLeases(...asked);
  });
  const renewing = leases.renew();
  const current = leases.holdChunk((await claim())!.lease, null);
  isHeld.resolve();
  await renewing;
  expect([current.endReason, current.stop.aborted]).toEqual([null, false]);
});

test("a run whose claim was still on its way when the process began to leave ends with the others", async () => {
  await using bench = await leasesBench();
  const { leases, clock, claim } = bench;
  const before = leases.holdChunk((await claim("a"))!.lease, null);
  const late = await claim("b");
  leases.drain(1_000);
  const after = leases.holdChunk(late!.lease, null);
  for (const run of [before, after]) {
    expect([run.stop.aborted, run.abort.aborted]).toEqual([true, false]);
  }
  clock.advance(1_000);
  await setImmediate();
  expect([before.abort.aborted, after.abort.aborted]).toEqual([true, true]);
});

test("a claim of our own that overtakes an earlier one ends the earlier run, and the later one goes on", async () => {
  await using bench = await leasesBench();
  const { leases, clock, store, batch } = bench;
  const claim = () => claimFirst(store, { ...claimBy("us"), batchId: batch.id, model: "a" });
  const earlier = await claim();
  const run = leases.holdChunk(earlier!.lease, null);
  clock.advance(LEASE_OVER_MS);
  const later = await claim();
  const current = leases.holdChunk(later!.lease, null);
  leases.endChunkRun(earlier!.lease);
  await leases.renew();
  expect([run.endReason, run.abort.aborted]).toEqual(["lease", true]);
  expect([current.endReason, current.stop.aborted]).toEqual([null, false]);
});

test("requests that change batches share the renewals of leases, and one that changes metadata needs none", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock: new FakeClock(),
  });
  const { openai, events } = service;
  const { id } = await service.submit(chatLines(1));
  await upstream.reached(1);
  const { renew } = Leases.prototype;
  const allChanged = Promise.withResolvers<void>();
  const renewals = vi.spyOn(Leases.prototype, "renew").mockImplementation(async function (
    this: Leases,
  ) {
    await allChanged.promise;
    return renew.call(this);
  });
  const change = (body: object) => openai.post(`/batches/${id}`, { body });
  await change({ metadata: { name: "new" } });
  expect(renewals).not.toHaveBeenCalled();
  const changes = Array.from({ length: 50 }, (_, n) => change({ priority: n % 10 }));
  await events.reached("batch.updated", { count: 51 });
  allChanged.resolve();
  await Promise.all(changes);
  expect(renewals.mock.calls.length).toBeLessThan(10);
  renewals.mockRestore();
  upstream.release();
});
