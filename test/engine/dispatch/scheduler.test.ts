import { expect, test } from "vitest";
import { Scheduler, type SchedulerDeps } from "../../../src/engine/dispatch/scheduler.ts";
import { loop, Nudge } from "../../../src/loop.ts";
import { Events } from "../../support/events.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { aRoute, someWork } from "../../support/runnable-work.ts";

/** A scheduler with nothing to claim, and a store that takes `listMs` to say so. */
function idleScheduler(listMs: number) {
  const clock = new FakeClock();
  let listCount = 0;
  const store = {
    listRunnable: async () => {
      listCount++;
      clock.advance(listMs);
      return [];
    },
    listBatchesAtRisk: async () => [],
  };
  const nudge = new Nudge();
  const parts = {
    clock,
    store,
    health: { look: async () => true },
    nudge,
    isMemoryFull: () => false,
    pollEveryMs: 1_000,
  };
  const scheduler = new Scheduler(parts as unknown as SchedulerDeps);
  return { clock, scheduler, nudge, listCount: () => listCount };
}

test("what can be claimed is listed again at each change while that is quick", async () => {
  const { scheduler, listCount } = idleScheduler(1);
  for (let i = 0; i < 100; i++) {
    scheduler.recheck();
    await scheduler.startNext();
  }
  expect(listCount()).toBe(100);
});

test("a slow list takes a small part of the time, however often something changes", async () => {
  const { clock, scheduler, listCount } = idleScheduler(50);
  const startMs = clock.nowMs();
  while (clock.nowMs() - startMs < 10_000) {
    scheduler.recheck();
    await scheduler.startNext();
    clock.advance(1);
  }
  expect(listCount()).toBeGreaterThanOrEqual(10);
  expect(listCount() * 50).toBeLessThanOrEqual(1_100);
});

test("what changes while the list rests is listed when the rest is over, and not at the next poll", async () => {
  const { clock, scheduler, nudge, listCount } = idleScheduler(50);
  const everyMs = 3_600_000;
  const end = new AbortController();
  const runOnce = () => scheduler.startNext();
  const { log } = new Events();
  const parts = { name: "chunks", everyMs, nudge, drain: end.signal, clock, log, runOnce };
  const looping = loop(parts);
  await clock.asleep(1, clock.nowMs() + everyMs - 1_000);
  expect(listCount()).toBe(1);
  scheduler.recheck();
  // The rest is nine times as long as the list took.
  await expect.poll(() => clock.nextAtMs - clock.nowMs()).toBe(450);
  expect(listCount()).toBe(1);
  clock.advance(450);
  await expect.poll(listCount).toBe(2);
  end.abort();
  await looping;
});

test("a claim that finds nothing is not made again before the next list", async () => {
  const route = aRoute();
  let claimCount = 0;
  const store = {
    listRunnable: async () => [someWork()],
    listBatchesAtRisk: async () => [],
    claimChunks: async () => {
      claimCount++;
      return [];
    },
  };
  const parts = {
    clock: new FakeClock(),
    store,
    health: { look: async () => true },
    upstreams: { findRoute: () => route },
    claim: async () => ({ owner: "us", ttlMs: 30_000 }),
    projectWeightOf: () => 1,
    isMemoryFull: () => false,
    pollEveryMs: 1_000,
  };
  const scheduler = new Scheduler(parts as unknown as SchedulerDeps);
  expect(await scheduler.startNext()).toBe(true);
  expect(await scheduler.startNext()).toBe(false);
  expect(claimCount).toBe(1);
});
