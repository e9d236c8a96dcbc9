import { getEventListeners } from "node:events";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { acquireSlot, Limiter, type Slot } from "../../src/upstream/limiter.ts";

class Gate {
  readonly limiter: Limiter;
  readonly name: string;

  constructor(name: string, limit: number) {
    this.name = name;
    this.limiter = new Limiter(limit);
  }
}

const never = new AbortController().signal;
const settle = () => new Promise<void>((resolve) => setImmediate(resolve));

describe("a limiter", () => {
  test("gives a free slot at once, without a promise", () => {
    const gate = new Gate("a", 1);
    const slot = acquireSlot([gate], never);
    expect(slot).not.toBeInstanceOf(Promise);
    expect((slot as Slot<Gate>).target).toBe(gate);
    expect(gate.limiter).toMatchObject({ limit: 1, inFlight: 1, free: 0 });
  });

  test("hands a slot that comes back to whoever waits longest", async () => {
    const gate = new Gate("a", 1);
    const held = acquireSlot([gate], never) as Slot<Gate>;
    const order: string[] = [];
    const waiting = ["first", "second"].map(async (name) => {
      const slot = await acquireSlot([gate], never);
      order.push(name);
      return slot;
    });
    held.release();
    (await waiting[0])?.release();
    await waiting[1];
    expect(order).toEqual(["first", "second"]);
    expect(gate.limiter.inFlight).toBe(1);
  });

  test("takes a slot back once, however often it is released", () => {
    const gate = new Gate("a", 2);
    const slot = acquireSlot([gate], never) as Slot<Gate>;
    const other = acquireSlot([gate], never) as Slot<Gate>;
    slot.release();
    slot.release();
    expect(gate.limiter.inFlight).toBe(1);
    other.release();
    expect(gate.limiter.inFlight).toBe(0);
  });

  test("prefers the target with the smaller share of its slots taken", () => {
    const [small, large] = [new Gate("small", 2), new Gate("large", 10)];
    const names = Array.from(
      { length: 12 },
      () => (acquireSlot([small, large], never) as Slot<Gate>).target.name,
    );
    expect(names.slice(0, 7)).toEqual([
      "small",
      "large",
      "large",
      "large",
      "large",
      "large",
      "small",
    ]);
    expect(small.limiter.free + large.limiter.free).toBe(0);
  });

  test("lets a waiter of two targets take the first slot that frees, and only one", async () => {
    const [a, b] = [new Gate("a", 1), new Gate("b", 1)];
    const [heldA, heldB] = [acquireSlot([a], never), acquireSlot([b], never)] as Slot<Gate>[];
    const waiting = acquireSlot([a, b], never);
    heldB!.release();
    heldA!.release();
    expect((await waiting)?.target).toBe(b);
    expect([a.limiter.inFlight, b.limiter.inFlight]).toEqual([0, 1]);
  });

  test("ends a wait at once when the signal aborts, and leaves no listener behind", async () => {
    const gate = new Gate("a", 1);
    const held = acquireSlot([gate], never) as Slot<Gate>;
    const stop = new AbortController();
    const waiting = [acquireSlot([gate], stop.signal), acquireSlot([gate], stop.signal)];
    expect(getEventListeners(stop.signal, "abort")).toHaveLength(1);
    stop.abort();
    expect(await Promise.all(waiting)).toEqual([null, null]);
    expect(getEventListeners(stop.signal, "abort")).toHaveLength(0);
    expect(acquireSlot([gate], stop.signal)).toBeNull();
    held.release();
    expect(gate.limiter.free).toBe(1);
  });

  test("removes its listener when the wait ends with a slot", async () => {
    const gate = new Gate("a", 1);
    const held = acquireSlot([gate], never) as Slot<Gate>;
    const stop = new AbortController();
    const waiting = acquireSlot([gate], stop.signal);
    held.release();
    (await waiting)?.release();
    expect(getEventListeners(stop.signal, "abort")).toHaveLength(0);
  });

  test("lets waiters in when its limit rises, and nobody until it is under a lower one", async () => {
    const gate = new Gate("a", 2);
    const held = [acquireSlot([gate], never), acquireSlot([gate], never)] as Slot<Gate>[];
    let granted = 0;
    const wait = async () => {
      await acquireSlot([gate], never);
      granted++;
    };
    const waiting = [wait(), wait()];
    gate.limiter.setLimit(1);
    held[0]!.release();
    await settle();
    expect([granted, gate.limiter.inFlight, gate.limiter.free]).toEqual([0, 1, 0]);
    gate.limiter.setLimit(3);
    await Promise.all(waiting);
    expect(gate.limiter.inFlight).toBe(3);
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
  readonly gates: readonly Gate[];
  readonly stop: AbortController;
}

/** Drives limiters by steps and checks, after each, what must hold whatever the order. */
class Simulation {
  readonly gates = Array.from({ length: GATES }, (_, i) => new Gate(String(i), 2));
  held: Slot<Gate>[] = [];
  waiting: Waiting[] = [];
  /** Grants while somebody who came earlier still waited for the same target. */
  #overtakes = 0;

  async run({ ...step }: Step): Promise<void> {
    const before = this.gates.map(({ limiter }) => limiter.inFlight);
    if (step.do === "acquire") {
      await this.#acquire(step.gates.map((i) => this.gates[i] as Gate));
    } else if (step.do === "limit") this.gates[step.gate]?.limiter.setLimit(step.limit);
    else if (step.do === "release" && this.held.length > 0) {
      this.held.splice(step.pick % this.held.length, 1)[0]?.release();
    } else if (step.do === "abort" && this.waiting.length > 0) {
      this.waiting[step.pick % this.waiting.length]?.stop.abort();
    }
    await settle();
    this.#check(before);
  }

  async #acquire(gates: readonly Gate[]): Promise<void> {
    const entry: Waiting = { gates, stop: new AbortController() };
    const granted = acquireSlot(gates, entry.stop.signal);
    if (!(granted instanceof Promise)) {
      this.held.push(granted as Slot<Gate>);
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
      const { inFlight, limit, free } = gate.limiter;
      expect(inFlight).toBe(this.held.filter((slot) => slot.target === gate).length);
      if (inFlight > (before[i] as number)) expect(inFlight).toBeLessThanOrEqual(limit);
      if (free > 0) expect(this.waiting.filter((w) => w.gates.includes(gate))).toEqual([]);
    }
  }

  /** Gives every slot back until nobody waits. */
  async finish(): Promise<void> {
    for (const gate of this.gates) gate.limiter.setLimit(Math.max(1, gate.limiter.limit));
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
      expect(simulation.gates.map(({ limiter }) => limiter.inFlight)).toEqual([0, 0, 0]);
    }),
    { numRuns: 150 },
  );
});
