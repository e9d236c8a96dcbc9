import fc from "fast-check";
import { expect, test } from "vitest";
import {
  type Acquired,
  acquire,
  SlotTarget,
  settle,
  type TestSlot,
  together,
} from "../support/slot-targets.ts";

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
  /** Grants while an earlier request still waited for the same target. */
  #overtakes = 0;

  async run({ ...step }: Step): Promise<void> {
    const before = this.gates.map(({ taken }) => taken);
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

  /** Gives every slot back until no request waits. */
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
      expect(simulation.gates.map(({ taken }) => taken)).toEqual([0, 0, 0]);
    }),
    { numRuns: 150 },
  );
});
