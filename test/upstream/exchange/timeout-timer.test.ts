import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { systemClock } from "../../../src/clock.ts";
import {
  type Awaited,
  type Timeouts,
  TimeoutTimer,
} from "../../../src/upstream/exchange/timeout-timer.ts";
import { FakeClock } from "../../support/fake-clock.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

const NO_BOUND = Number.POSITIVE_INFINITY;

function start(timeouts: Partial<Timeouts>) {
  const rung: { waitedFor: Awaited | "answer"; atMs: number }[] = [];
  const startedAtMs = performance.now();
  const all = { connectMs: NO_BOUND, firstByteMs: NO_BOUND, idleMs: NO_BOUND, totalMs: 10_000 };
  const timer = new TimeoutTimer({ ...all, ...timeouts }, systemClock, {
    expire: (waitedFor) => {
      rung.push({ waitedFor, atMs: performance.now() - startedAtMs });
    },
  });
  return { timer, rung, pass: (ms: number) => vi.advanceTimersByTime(ms) };
}

test("rings once, when the time for what it waits for is over", () => {
  const waits: [Awaited, Partial<Timeouts>, number][] = [
    ["connection", { connectMs: 300 }, 300],
    ["first_byte", { firstByteMs: 200 }, 250],
    ["more", { idleMs: 100 }, 150],
  ];
  for (const [awaited, timeouts, atMs] of waits) {
    const { timer, rung, pass } = start(timeouts);
    pass(50);
    if (awaited !== "connection") timer.await(awaited);
    pass(20_000);
    expect(rung).toEqual([{ waitedFor: awaited, atMs }]);
  }
});

test("rings for the whole answer whatever it waits for", () => {
  for (const awaited of ["connection", "first_byte", "more", "reader"] as const) {
    const { timer, rung, pass } = start({ totalMs: 900 });
    timer.await(awaited);
    pass(20_000);
    expect(rung).toEqual([{ waitedFor: "answer", atMs: 900 }]);
  }
});

test("counts each wait from its own beginning", () => {
  const { timer, rung, pass } = start({ connectMs: 500, firstByteMs: 100, idleMs: 300 });
  pass(450);
  timer.await("first_byte");
  pass(90);
  timer.await("more");
  for (let piece = 0; piece < 20; piece++) {
    pass(290);
    timer.await("more");
  }
  expect(rung).toEqual([]);
  pass(1_000);
  expect(rung).toEqual([{ waitedFor: "more", atMs: 450 + 90 + 20 * 290 + 300 }]);
});

test("does not hold the time of a slow reader against the answer", () => {
  const { timer, rung, pass } = start({ idleMs: 100 });
  timer.await("more");
  pass(50);
  timer.await("reader");
  pass(5_000);
  expect(rung).toEqual([]);
  timer.await("more");
  pass(99);
  expect(rung).toEqual([]);
  pass(1);
  expect(rung).toEqual([{ waitedFor: "more", atMs: 5_150 }]);
});

test("is silent once it was stopped, and keeps no timer", () => {
  const { timer, rung, pass } = start({ connectMs: 100 });
  timer.stop();
  expect(vi.getTimerCount()).toBe(0);
  pass(20_000);
  expect(rung).toEqual([]);
});

/** The clock rings late: a step of it is a time in which the process stands still. */
function startOnLateClock(timeouts: Timeouts) {
  const clock = new FakeClock();
  const rung: (Awaited | "answer")[] = [];
  const expire = (waitedFor: Awaited | "answer") => rung.push(waitedFor);
  const timer = new TimeoutTimer(timeouts, clock, { expire });
  const standStill = async (ms: number) => {
    clock.advance(ms);
    await Promise.resolve();
  };
  return { timer, rung, standStill };
}

const ONLY_TOTAL = { connectMs: NO_BOUND, firstByteMs: NO_BOUND, idleMs: NO_BOUND };

test("gives the time by which it rings late once more, and up to ten seconds", async () => {
  for (const [lateMs, moreMs] of [
    [300, 300],
    [4_000, 4_000],
    [3_600_000, 10_000],
  ] as const) {
    const { rung, standStill } = startOnLateClock({ ...ONLY_TOTAL, totalMs: 5_000 });
    await standStill(5_000 + lateMs);
    await standStill(moreMs - 1);
    expect(rung).toEqual([]);
    await standStill(3_000);
    expect(rung).toEqual(["answer"]);
  }
});

test("lets an answer that came while the process stood still go on", async () => {
  const { timer, rung, standStill } = startOnLateClock({
    ...ONLY_TOTAL,
    firstByteMs: 200,
    idleMs: 500,
    totalMs: 60_000,
  });
  timer.await("first_byte");
  await standStill(1_000);
  timer.await("more");
  await standStill(499);
  expect(rung).toEqual([]);
  timer.await("more");
  await standStill(501);
  expect(rung).toEqual(["more"]);
});

test("has one timer, however often it is told of something new", () => {
  const { timer, pass } = start({ connectMs: 100, firstByteMs: 50, idleMs: 20 });
  for (const awaited of ["first_byte", "more", "more", "reader", "more"] as const) {
    timer.await(awaited);
    pass(15);
    expect(vi.getTimerCount()).toBe(1);
  }
});
