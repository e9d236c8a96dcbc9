import { getEventListeners } from "node:events";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Gate, Lane } from "../../src/upstream/capacity/limiter.ts";
import {
  type Acquired,
  clock,
  OPEN,
  SlotRoute,
  SlotTarget,
  type TestSlot,
} from "../support/slot-targets.ts";

const settle = () => new Promise<void>((resolve) => setImmediate(resolve));

const routes = new WeakMap<SlotTarget, SlotRoute<readonly SlotTarget[]>>();

/** The targets of one route. */
function together<Targets extends readonly SlotTarget[]>(...targets: Targets): Targets {
  const route = new SlotRoute<readonly SlotTarget[]>(...targets);
  for (const target of targets) routes.set(target, route);
  return targets;
}

/** A slot of one of these, at once or later. */
function acquire(
  only: readonly SlotTarget[],
  asking: { readonly signal?: AbortSignal; readonly lane?: Lane } = {},
): Acquired {
  if (!routes.has(only[0]!)) together(...only);
  const route = routes.get(only[0]!)!;
  return route.acquire({ ...asking, only });
}

const takenAt = ({ limiter }: SlotTarget) => limiter.totalInFlight;

describe("a limiter", () => {
  test("gives a free slot at once, without a promise", () => {
    const gate = new SlotTarget("a", 1);
    const slot = acquire([gate]);
    expect(slot).not.toBeInstanceOf(Promise);
    expect((slot as TestSlot).target).toBe(gate);
    expect([takenAt(gate), gate.free]).toEqual([1, 0]);
  });

  test("hands a slot that comes back to whoever waits longest", async () => {
    const gate = new SlotTarget("a", 1);
    const held = acquire([gate]) as TestSlot;
    const order: string[] = [];
    const waiting = ["first", "second"].map(async (name) => {
      const slot = await acquire([gate]);
      order.push(name);
      return slot;
    });
    held.release();
    (await waiting[0])?.release();
    await waiting[1];
    expect(order).toEqual(["first", "second"]);
    expect(takenAt(gate)).toBe(1);
  });

  test("takes a slot back once, however often it is released", () => {
    const gate = new SlotTarget("a", 2);
    const slot = acquire([gate]) as TestSlot;
    const other = acquire([gate]) as TestSlot;
    slot.release();
    slot.release();
    expect(takenAt(gate)).toBe(1);
    other.release();
    expect(takenAt(gate)).toBe(0);
  });

  test("lets a waiter of two targets take the first slot that frees, and only one", async () => {
    const [a, b] = together(new SlotTarget("a", 1), new SlotTarget("b", 1));
    const [heldA, heldB] = [acquire([a]), acquire([b])] as TestSlot[];
    const waiting = acquire([a, b]);
    heldB!.release();
    heldA!.release();
    expect((await waiting)?.target).toBe(b);
    expect([takenAt(a), takenAt(b)]).toEqual([0, 1]);
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

  test("has one listener on a signal, however many waits have ended with a slot", async () => {
    const gate = new SlotTarget("a", 1);
    const stop = new AbortController();
    for (let i = 0; i < 10; i++) {
      const held = acquire([gate]) as TestSlot;
      const waiting = acquire([gate], { signal: stop.signal });
      held.release();
      (await waiting)?.release();
    }
    expect(getEventListeners(stop.signal, "abort")).toHaveLength(1);
  });

  test("lets waiters in when its limit rises, and nobody until it is under a lower one", async () => {
    const gate = new SlotTarget("a", 2);
    const held = [acquire([gate]), acquire([gate])] as TestSlot[];
    let granted = 0;
    const wait = async () => {
      await acquire([gate]);
      granted++;
    };
    const waiting = [wait(), wait()];
    gate.limiter.setLimits(1, 1);
    held[0]!.release();
    await settle();
    expect([granted, takenAt(gate), gate.free]).toEqual([0, 1, 0]);
    gate.limiter.setLimits(3, 3);
    await Promise.all(waiting);
    expect(takenAt(gate)).toBe(3);
  });
});

describe("two lanes", () => {
  test("interactive ones go before the lines that came earlier", async () => {
    const target = new SlotTarget("a", 1);
    const held = acquire([target]) as TestSlot;
    const order: string[] = [];
    const wait = async (lane: Lane) => {
      const slot = await acquire([target], { lane });
      order.push(lane);
      slot?.release();
    };
    const waiting = [wait("batch"), wait("interactive")];
    held.release();
    await Promise.all(waiting);
    expect(order).toEqual(["interactive", "batch"]);
  });

  test("lines leave the reserve alone, and interactive ones do not", async () => {
    const target = new SlotTarget("a", 3, { batchLimit: 2 });
    const lines = [acquire([target]), acquire([target])] as TestSlot[];
    let isGranted = false;
    const third = (async () => {
      await acquire([target]);
      isGranted = true;
    })();
    expect(acquire([target], { lane: "interactive" })).not.toBeInstanceOf(Promise);
    await settle();
    expect(isGranted).toBe(false);
    lines[0]?.release();
    await third;
    expect(target.limiter.inFlight).toEqual({ interactive: 1, batch: 2 });
  });
});

describe("a gate", () => {
  const gateUntil = (atMs: () => number): Gate => ({
    ...OPEN,
    openAtMs: atMs,
    readyAtMs: atMs,
  });

  test("lets nobody through before its time, then everybody that has a slot, in order", async () => {
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

  test("lines are shared by weight", async () => {
    const [light, heavy] = together(
      new SlotTarget("light", 50),
      new SlotTarget("heavy", 50, { weight: 4 }),
    );
    for (let i = 0; i < 50; i++) await acquire([light, heavy]);
    expect([takenAt(light), takenAt(heavy)]).toEqual([10, 40]);
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
  expect(both.map(takenAt).reduce((sum, count) => sum + count)).toBe(15_000);
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

type Step =
  | { readonly do: "acquire"; readonly gates: readonly number[] }
  | { readonly do: "release" | "abort"; readonly pick: number }
  | { readonly do: "limit"; readonly gate: number; readonly limit: number };

const GATES = 3;
const gateIndex = fc.nat(GATES - 1);
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant("acquire" as const),
      gates: fc.uniqueArray(gateIndex, { minLength: 1 }),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constantFrom("release", "abort"), pick: fc.nat() }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant("limit" as const),
      gate: gateIndex,
      limit: fc.nat(4),
    }),
  },
);

interface Waiting {
  readonly gates: readonly SlotTarget[];
  readonly stop: AbortController;
}

/** Drives limiters by steps and checks, after each, what must hold whatever the order. */
class Simulation {
  readonly gates = together(
    ...Array.from({ length: GATES }, (_, i) => new SlotTarget(String(i), 2)),
  );
  held: TestSlot[] = [];
  waiting: Waiting[] = [];
  /** Grants while somebody who came earlier still waited for the same target. */
  #overtakes = 0;

  async run({ ...step }: Step): Promise<void> {
    const before = this.gates.map(takenAt);
    if (step.do === "acquire") {
      await this.#acquire(step.gates.map((i) => this.gates[i] as SlotTarget));
    } else if (step.do === "limit")
      this.gates[step.gate]?.limiter.setLimits(step.limit, step.limit);
    else if (step.do === "release" && this.held.length > 0) {
      this.held.splice(step.pick % this.held.length, 1)[0]?.release();
    } else if (step.do === "abort" && this.waiting.length > 0) {
      this.waiting[step.pick % this.waiting.length]?.stop.abort();
    }
    await settle();
    this.#check(before);
  }

  async #acquire(gates: readonly SlotTarget[]): Promise<void> {
    const entry: Waiting = { gates, stop: new AbortController() };
    const granted: Acquired = acquire(gates, { signal: entry.stop.signal });
    if (!(granted instanceof Promise)) {
      this.held.push(granted as TestSlot);
      return;
    }
    this.waiting.push(entry);
    void granted.then((slot) => {
      const place = this.waiting.indexOf(entry);
      this.waiting.splice(place, 1);
      if (slot === null) return;
      this.held.push(slot);
      const earlier = this.waiting.slice(0, place);
      if (earlier.some((w) => w.gates.includes(slot.target))) this.#overtakes++;
    });
  }

  #check(before: readonly number[]): void {
    expect(this.#overtakes).toBe(0);
    for (const [i, gate] of this.gates.entries()) {
      const { totalInFlight: inFlight, limit } = gate.limiter;
      expect(inFlight).toBe(this.held.filter((slot) => slot.target === gate).length);
      if (inFlight > (before[i] as number)) expect(inFlight).toBeLessThanOrEqual(limit);
      if (inFlight < limit) expect(this.waiting.filter((w) => w.gates.includes(gate))).toEqual([]);
    }
  }

  /** Gives every slot back until nobody waits. */
  async finish(): Promise<void> {
    for (const gate of this.gates)
      gate.limiter.setLimits(Math.max(1, gate.limiter.limit), Math.max(1, gate.limiter.limit));
    await settle();
    while (this.held.length > 0) await this.run({ do: "release", pick: 0 });
  }
}

test("whatever the order of acquire, release, abort and new limits: never over the limit, first come first served, no slot lost", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60, size: "max" }), async (steps) => {
      const simulation = new Simulation();
      for (const each of steps) await simulation.run(each);
      await simulation.finish();
      expect(simulation.waiting).toEqual([]);
      expect(simulation.gates.map(takenAt)).toEqual([0, 0, 0]);
    }),
    { numRuns: 150 },
  );
});

/** Both lanes at one target, with what each of them was given while the other waited too. */
class Lanes {
  readonly waiting: Record<Lane, number> = { interactive: 0, batch: 0 };
  /** In the order in which they were given. */
  readonly held: TestSlot[] = [];
  readonly order: Lane[] = [];
  readonly target: SlotTarget;

  constructor(target: SlotTarget) {
    this.target = target;
  }

  ask(lane: Lane): void {
    this.waiting[lane]++;
    const take = (slot: TestSlot | null) => {
      this.waiting[lane]--;
      this.order.push(lane);
      if (slot !== null) this.held.push(slot);
    };
    const asked = acquire([this.target], { lane });
    if (asked instanceof Promise) void asked.then(take);
    else take(asked);
  }

  async release(index: number): Promise<void> {
    this.held.splice(index, 1)[0]?.release();
    await settle();
  }
}

describe("while both lanes want every slot", () => {
  const lanesWith = (limit: number, share: number, batchLimit = limit) => {
    const lanes = new Lanes(new SlotTarget("a", limit, { share, batchLimit }));
    for (let i = 0; i < 200; i++) lanes.ask("interactive");
    for (let i = 0; i < 200; i++) lanes.ask("batch");
    return lanes;
  };
  const linesOf = (order: readonly Lane[]) => order.filter((lane) => lane === "batch").length;

  test.for([1, 2, 3, 8, 20])("lines get a quarter of %i slots", async (limit) => {
    const lanes = lanesWith(limit, 0.25);
    for (let i = 0; i < 80; i++) await lanes.release(0);
    expect(lanes.order.slice(0, limit), "who came first").not.toContain("batch");
    expect(linesOf(lanes.order.slice(limit))).toBeGreaterThanOrEqual(16);
    expect(linesOf(lanes.order.slice(limit))).toBeLessThanOrEqual(24);
  });

  test("lines hold no more than their share, however much longer they take", async () => {
    const lanes = lanesWith(8, 0.25);
    for (let i = 0; i < 80; i++) {
      const answered = lanes.held.findIndex(({ request }) => request.lane === "interactive");
      await lanes.release(answered);
      expect(lanes.target.limiter.inFlight.batch).toBe(Math.min(i + 1, 2));
    }
  });

  test("lines keep their slots when interactive answers take for ever", async () => {
    const lanes = lanesWith(8, 0.25);
    await lanes.release(0);
    await lanes.release(0);
    for (let i = 0; i < 80; i++) {
      await lanes.release(lanes.held.findIndex(({ request }) => request.lane === "batch"));
      expect(lanes.target.limiter.inFlight).toEqual({ interactive: 6, batch: 2 });
    }
  });

  test("the reserve is no line's, whatever their share", async () => {
    const lanes = lanesWith(4, 1, 3);
    for (let i = 0; i < 20; i++) await lanes.release(0);
    expect(lanes.target.limiter.inFlight).toEqual({ interactive: 1, batch: 3 });
  });

  test("lines that may not go, as outside their hours, hold nobody up", async () => {
    const lanes = lanesWith(4, 0.25, 0);
    for (let i = 0; i < 40; i++) await lanes.release(0);
    expect(linesOf(lanes.order)).toBe(0);
    expect(lanes.target.limiter.totalInFlight).toBe(4);
  });

  test("a share that is no fraction of two is met to the slot", async () => {
    const lanes = lanesWith(1, 0.1);
    for (let i = 0; i < 100; i++) await lanes.release(0);
    const places = lanes.order.slice(1).flatMap((lane, i) => (lane === "batch" ? [i % 10] : []));
    expect(places).toEqual(Array.from({ length: 10 }, () => 9));
  });

  test("one who asks now and then goes before all lines, every time", async () => {
    const lanes = new Lanes(new SlotTarget("a", 1, { share: 0.25 }));
    for (let i = 0; i < 50; i++) lanes.ask("batch");
    for (let i = 0; i < 12; i++) {
      lanes.ask("interactive");
      await lanes.release(0);
      await lanes.release(0);
    }
    expect(lanes.order.slice(1)).toEqual(
      Array.from({ length: 12 }, () => ["interactive", "batch"]).flat(),
    );
  });

  test("a share of nothing lets lines go last", async () => {
    const lanes = lanesWith(4, 0);
    for (let i = 0; i < 196; i++) await lanes.release(0);
    expect(linesOf(lanes.order)).toBe(0);
    await lanes.release(0);
    expect(linesOf(lanes.order)).toBe(1);
  });
});

test("whoever comes and goes: no slot stays free, no line waits for more than its share, and none goes before an interactive request for more", async () => {
  const move = fc.record({
    do: fc.constantFrom("interactive", "batch", "release", "release"),
    pick: fc.nat(),
  });
  const setup = fc.record({
    limit: fc.integer({ min: 1, max: 9 }),
    share: fc.constantFrom(0.1, 0.25, 0.5, 0.9),
    moves: fc.array(move, { minLength: 50, maxLength: 200, size: "max" }),
  });
  await fc.assert(
    fc.asyncProperty(setup, async ({ limit, share, moves }) => {
      const lanes = new Lanes(new SlotTarget("a", limit, { share }));
      const { inFlight } = lanes.target.limiter;
      let overtakes = 0;
      for (const { do: what, pick } of moves) {
        if (what !== "release") {
          lanes.ask(what as Lane);
          await settle();
          continue;
        }
        if (lanes.held.length === 0) continue;
        const index = pick % lanes.held.length;
        const isLine = lanes.held[index]!.request.lane === "batch";
        const [batch, grants] = [inFlight.batch - Number(isLine), lanes.order.length];
        const haveBothWaited = lanes.waiting.batch > 0 && lanes.waiting.interactive > 0;
        await lanes.release(index);
        const granted = lanes.order[grants];
        if (granted === "batch") overtakes = 0;
        if (haveBothWaited && granted === "batch") expect(batch).toBeLessThan(share * limit);
        if (haveBothWaited && granted === "interactive" && batch < share * limit) overtakes++;
        expect(overtakes).toBeLessThan(Math.ceil(1 / share));
        const waiting = lanes.waiting.batch + lanes.waiting.interactive;
        if (waiting > 0) expect(lanes.target.limiter.totalInFlight).toBe(limit);
      }
    }),
    { numRuns: 150 },
  );
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
    expect(takenAt(target)).toBe(40);
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
    expect([served, takenAt(target)]).toEqual([[], 0]);
    await settle();
    expect(served).toEqual(["batch"]);
  });

  test("has no end for interactive requests", () => {
    const target = new SlotTarget("a", 40);
    for (let i = 0; i < 40; i++) {
      expect(acquire([target], { lane: "interactive" })).not.toBeInstanceOf(Promise);
      clock.advance(1);
    }
  });
});
