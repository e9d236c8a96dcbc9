import { getEventListeners } from "node:events";
import { describe, expect, test, vi } from "vitest";
import { type Gate, type Lane, Limiter } from "../../src/upstream/capacity/limiter.ts";
import {
  acquire,
  clock,
  OPEN,
  SlotRoute,
  SlotTarget,
  settle,
  type TestSlot,
  together,
} from "../support/slot-targets.ts";

describe("a limiter", () => {
  test("gives a free slot at once, without a promise", () => {
    const gate = new SlotTarget("a", 1);
    const slot = acquire([gate]);
    expect(slot).not.toBeInstanceOf(Promise);
    expect((slot as TestSlot).target).toBe(gate);
    expect([gate.taken, gate.free]).toEqual([1, 0]);
  });

  test("takes a slot back once, however often it is released", () => {
    const gate = new SlotTarget("a", 2);
    const slot = acquire([gate]) as TestSlot;
    const other = acquire([gate]) as TestSlot;
    slot.release();
    slot.release();
    expect(gate.taken).toBe(1);
    other.release();
    expect(gate.taken).toBe(0);
  });

  test("ends a wait at once when the signal aborts, and leaves no listener behind", async () => {
    const gate = new SlotTarget("a", 1);
    const held = acquire([gate]) as TestSlot;
    const stop = new AbortController();
    const waiting = [
      acquire([gate], { signal: stop.signal }),
      acquire([gate], { signal: stop.signal }),
    ];
    expect(getEventListeners(stop.signal, "abort")).toHaveLength(1);
    stop.abort();
    expect(await Promise.all(waiting)).toEqual([null, null]);
    expect(getEventListeners(stop.signal, "abort")).toHaveLength(0);
    expect(acquire([gate], { signal: stop.signal })).toBeNull();
    held.release();
    expect(gate.free).toBe(1);
  });
});

describe("a gate", () => {
  const gateUntil = (atMs: () => number): Gate => ({
    ...OPEN,
    openAtMs: atMs,
    readyAtMs: atMs,
  });

  test("lets no request through before its time, then every one that has a slot, in order", async () => {
    const opensAtMs = clock.elapsedMs() + 60_000;
    const target = new SlotTarget("a", 2, { gate: gateUntil(() => opensAtMs) });
    const order: number[] = [];
    const waiting = [0, 1, 2].map(async (i) => {
      const slot = await acquire([target]);
      order.push(i);
      return slot;
    });
    clock.advance(59_999);
    await settle();
    expect(order).toEqual([]);
    clock.advance(1);
    (await waiting[0])?.release();
    await Promise.all(waiting);
    expect(order).toEqual([0, 1, 2]);
  });

  test("that opens earlier than it said lets them through when it is looked at again", async () => {
    let opensAtMs = clock.elapsedMs() + 60_000;
    const target = new SlotTarget("a", 1, { gate: gateUntil(() => opensAtMs) });
    const waiting = acquire([target]);
    opensAtMs = clock.elapsedMs();
    target.limiter.recheck();
    expect((await waiting)?.target).toBe(target);
  });
});

describe("of several targets", () => {
  test("the first priority is used until it is full", async () => {
    const [spare, main] = together(
      new SlotTarget("spare", 2, { priority: 1 }),
      new SlotTarget("main", 2),
    );
    const names = Array.from({ length: 4 }, () => (acquire([spare, main]) as TestSlot).target.name);
    expect(names).toEqual(["main", "main", "spare", "spare"]);
  });

  test("a lower priority takes a line when other models get the slots that the first gives out", async () => {
    await settle();
    const [spare, main] = [new SlotTarget("spare", 1, { priority: 1 }), new SlotTarget("main", 2)];
    const [one, two] = [new SlotRoute(main), new SlotRoute(main)];
    const both = new SlotRoute(main, spare);
    const held = [one.acquire(), two.acquire(), both.acquire()] as TestSlot[];
    const waiting = [one.acquire(), two.acquire(), both.acquire()];
    for (const slot of held) slot.release();
    const names = (await Promise.all(waiting)).map((slot) => slot?.target.name);
    expect(names).toEqual(["main", "main", "spare"]);
  });

  test("lines are shared by weight", async () => {
    const [light, heavy] = together(
      new SlotTarget("light", 50),
      new SlotTarget("heavy", 50, { weight: 4 }),
    );
    for (let i = 0; i < 50; i++) await acquire([light, heavy]);
    expect([light.taken, heavy.taken]).toEqual([10, 40]);
  });

  test("one that leaves sends its waiters to the others, and away when there is none", async () => {
    const [a, b] = together(new SlotTarget("a", 1), new SlotTarget("b", 1));
    const held = [acquire([a]), acquire([b])] as TestSlot[];
    const both = acquire([a, b]);
    const onlyA = acquire([a]);
    a.limiter.close();
    expect(await onlyA).toBeNull();
    expect(await acquire([a])).toBeNull();
    // The last answers of a target that has left may still move its limits.
    a.limiter.setLimits(5, 5);
    expect(await acquire([a])).toBeNull();
    held[1]?.release();
    expect((await both)?.target).toBe(b);
  });
});

test("thousands that wait for two targets are served when both open in the same moment", async () => {
  let openAtMs = Number.POSITIVE_INFINITY;
  const gate: Gate = { ...OPEN, openAtMs: () => openAtMs, readyAtMs: () => openAtMs };
  const both = together(
    new SlotTarget("a", 10_000, { gate }),
    new SlotTarget("b", 10_000, { gate }),
  );
  const waiting = Array.from({ length: 15_000 }, () => acquire(both));
  openAtMs = 0;
  both[0]?.limiter.recheck();
  expect((await Promise.all(waiting)).every((slot) => slot !== null)).toBe(true);
  expect(both.map(({ taken }) => taken).reduce((sum, count) => sum + count)).toBe(15_000);
});

describe("a target that takes nothing for a while", () => {
  test("keeps lines that wait for it, and ends the wait of interactive requests that have no other", async () => {
    const [a, b] = together(new SlotTarget("a", 1), new SlotTarget("b", 1));
    const held = [acquire([a]), acquire([b])] as TestSlot[];
    const [onlyA, either] = [
      acquire([a], { lane: "interactive" }),
      acquire([a, b], { lane: "interactive" }),
    ];
    const line = acquire([a]);
    a.isPaused = true;
    a.limiter.redirect();
    expect(await onlyA).toBeNull();
    held[1]?.release();
    expect((await either)?.target).toBe(b);
    held[0]?.release();
    expect((await line)?.target).toBe(a);
    expect([a, b].map(({ limiter }) => limiter.waitingCount)).toEqual([0, 0]);
  });
});

describe("a turn of the event loop", () => {
  test("sends lines for some milliseconds, and the others follow in the next turns", async () => {
    const target = new SlotTarget("a", 40);
    const sentInTurns: number[] = [];
    let sentCount = 0;
    const send = () => {
      sentCount++;
      clock.advance(1);
    };
    for (let i = 0; i < 40; i++) {
      const asked = acquire([target]);
      if (asked instanceof Promise) void asked.then(send);
      else send();
    }
    for (let before = 0; before < 40; ) {
      sentInTurns.push(sentCount - before);
      before = sentCount;
      await settle();
    }
    expect(Math.max(...sentInTurns)).toBe(4);
    expect(target.taken).toBe(40);
  });

  test("that is over keeps the slot of a line whose turn it is", async () => {
    const target = new SlotTarget("a", 1, { share: 1 });
    (acquire([target]) as TestSlot).release();
    const held = acquire([target], { lane: "interactive" }) as TestSlot;
    const served: Lane[] = [];
    for (const lane of ["interactive", "batch"] as const) {
      void Promise.resolve(acquire([target], { lane })).then(() => served.push(lane));
    }
    clock.advance(5);
    held.release();
    await Promise.resolve();
    expect([served, target.taken]).toEqual([[], 0]);
    await settle();
    expect(served).toEqual(["batch"]);
  });

  test("that is over sends no line to a lower priority while the first has room", async () => {
    await settle();
    const [spare, main] = together(
      new SlotTarget("spare", 10, { priority: 1 }),
      new SlotTarget("main", 10),
    );
    const sent = Array.from({ length: 15 }, () => {
      const asked = acquire([spare, main]);
      clock.advance(3);
      return asked;
    });
    const names = (await Promise.all(sent)).map((slot) => slot?.target.name);
    expect(names.toSorted()).toEqual([...Array(10).fill("main"), ...Array(5).fill("spare")]);
  });

  test("that is over makes a grant look at each waiting batch a few times at most, whatever has room", async () => {
    await settle();
    const targets = [0, 1].map((priority) => new SlotTarget(`p${priority}`, 101, { priority }));
    const route = new SlotRoute(...targets);
    void route.acquire();
    clock.advance(5);
    // It is read whenever a request is looked at.
    const isClosed = vi.spyOn(Limiter.prototype, "isClosed", "get");
    await Promise.all(
      Array.from({ length: 100 }, () => route.acquire({ flow: route.flows.guest() })),
    );
    expect(targets.map(({ taken }) => taken)).toEqual([101, 0]);
    expect(isClosed.mock.calls.length).toBeLessThan(5 * 100 * 100 * targets.length);
    isClosed.mockRestore();
  });

  test("has no end for interactive requests", () => {
    const target = new SlotTarget("a", 40);
    for (let i = 0; i < 40; i++) {
      expect(acquire([target], { lane: "interactive" })).not.toBeInstanceOf(Promise);
      clock.advance(1);
    }
  });
});
