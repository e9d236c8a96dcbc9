import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Lane } from "../../src/upstream/capacity/limiter.ts";
import { acquire, SlotTarget, settle, type TestSlot } from "../support/slot-targets.ts";

/** Both lanes at one target, with what each of them was given while the other waited too. */
class Lanes {
  readonly waiting: Record<Lane, number> = { interactive: 0, batch: 0 };
  /** They are in the order in which they were given. */
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

  test("lines that may not go, as outside their hours, hold up no interactive request", async () => {
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

test("in any order of requests and ends: no slot stays free, no line waits for more than its share, and none goes before an interactive request for more", async () => {
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
