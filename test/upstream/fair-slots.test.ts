/** How the batches of a route share its slots. */
import { describe, expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { SlotRoute, SlotTarget, type TestSlot } from "../support/slot-targets.ts";

function aRoute(limit: number) {
  const target = new SlotTarget("only", limit);
  const route = new SlotRoute(target);
  const order: string[] = [];
  const held: TestSlot[] = [];
  let count = 0;
  /** A batch that sends lines, each as soon as it has a slot, and notes the order. */
  const batch = (name: string, fields: { project?: string; priority?: number } = {}) => {
    const stop = new AbortController();
    const flow = route.flows.join({
      batchId: name as BatchId,
      project: "one",
      priority: 0,
      deadlineAtMs: 1,
      createdAtMs: count++,
      ...fields,
    });
    const acquire = (rank = 0) => route.acquire({ flow, rank, signal: stop.signal });
    const sendLines = async (lineCount: number, rank = 0) => {
      for (let i = 0; i < lineCount; i++) {
        const asked = acquire(rank);
        const slot = asked instanceof Promise ? await asked : asked;
        if (slot === null) return false;
        held.push(slot);
        order.push(rank === 0 ? name : `${name}/${rank}`);
      }
      return true;
    };
    return { acquire, sendLines, stop, flow };
  };
  /** Lets so many answers come, one after the other or all at once. */
  const answer = async (slotCount: number) => {
    for (const slot of held.splice(0, slotCount)) slot.release();
    await new Promise(setImmediate);
  };
  return { route, target, order, batch, answer };
}

const countOf = (order: readonly string[], name: string) =>
  order.filter((each) => each === name).length;

describe("the slots of a route", () => {
  test("are taken at once while there are free ones", () => {
    const { batch, route } = aRoute(3);
    const { acquire } = batch("a");
    for (let i = 0; i < 3; i++) expect(acquire()).not.toBeInstanceOf(Promise);
    expect(route.queue.takeHadToWait()).toBe(false);
    void acquire();
    expect([route.queue.takeHadToWait(), route.queue.takeHadToWait()]).toEqual([true, true]);
  });

  test("go to the batch whose turn it is, not to the one that asked first", async () => {
    const { batch, order, answer } = aRoute(4);
    void batch("large").sendLines(1_000);
    void batch("small").sendLines(3);
    expect(order).toEqual(["large", "large", "large", "large"]);
    for (let i = 0; i < 7; i++) await answer(1);
    expect(countOf(order.slice(4), "small")).toBe(3);
    for (let i = 0; i < 10; i++) await answer(1);
    expect(order.slice(11)).toEqual(Array(10).fill("large"));
  });

  test("that become free together are shared like those that come one by one", async () => {
    const { batch, order, answer } = aRoute(8);
    void batch("first").sendLines(8);
    void batch("high", { priority: 10 }).sendLines(1_000);
    void batch("low", { priority: -10 }).sendLines(1_000);
    for (let i = 0; i < 17; i++) await answer(8);
    const shared = order.slice(8);
    expect(shared).toHaveLength(136);
    expect(Math.abs(countOf(shared, "low") - 8)).toBeLessThanOrEqual(1);
  });

  test("are shared equally by two projects", async () => {
    const { batch, order, answer } = aRoute(1);
    void batch("first").sendLines(1);
    for (let i = 0; i < 5; i++) void batch(`many-${i}`, { project: "two" }).sendLines(100);
    void batch("one").sendLines(100);
    for (let i = 0; i < 100; i++) await answer(1);
    expect(countOf(order, "one")).toBe(50);
  });

  test("are not lost when a batch stops, and only its own wait ends", async () => {
    const { batch, order, answer, target } = aRoute(1);
    void batch("first").sendLines(1);
    const leaving = batch("leaving");
    const gone = leaving.sendLines(5);
    void batch("staying").sendLines(5);
    leaving.stop.abort();
    expect(await gone).toBe(false);
    expect(leaving.acquire()).toBeNull();
    await answer(1);
    expect(order).toEqual(["first", "staying"]);
    expect(target.free).toBe(0);
  });

  test("are free for the next one when the last that waits stops", async () => {
    const { batch, order, answer, target, route } = aRoute(1);
    void batch("first").sendLines(1);
    const leaving = batch("leaving");
    const gone = leaving.sendLines(5);
    leaving.stop.abort();
    await gone;
    expect(route.queue.waitingCount).toBe(0);
    await answer(1);
    expect(target.free).toBe(1);
    expect(await batch("next").sendLines(1)).toBe(true);
    expect(order).toEqual(["first", "next"]);
  });

  test("go to lines that are sent again in the turn of their batch, and within it to the one that waited longest", async () => {
    const { batch, order, answer, route, target } = aRoute(1);
    void batch("first").sendLines(1);
    const retrying = batch("retrying");
    // The batch has left the shares: all its lines have had a slot once.
    route.flows.remove(retrying.flow);
    void retrying.sendLines(3);
    void batch("other").sendLines(50);
    for (let i = 0; i < 8; i++) await answer(1);
    expect(countOf(order, "retrying")).toBe(3);
    expect(target.taken).toBe(1);
  });
});

test("a batch sends the lines of one chunk before those of the next", async () => {
  const { batch, order, answer } = aRoute(1);
  const { sendLines } = batch("a");
  void sendLines(1, 1);
  void sendLines(2, 3);
  void sendLines(4, 2);
  for (let i = 0; i < 6; i++) await answer(1);
  expect(order).toEqual(["a/1", ...Array(4).fill("a/2"), ...Array(2).fill("a/3")]);
});

test("two routes of one target get its slots in turn", async () => {
  const target = new SlotTarget("shared", 1);
  const routes = [new SlotRoute(target), new SlotRoute(target)];
  const order: number[] = [];
  const held: TestSlot[] = [];
  const send = async (i: number) => {
    for (let line = 0; line < 10; line++) {
      const slot = await routes[i]!.acquire();
      if (slot !== null) held.push(slot);
      order.push(i);
    }
  };
  void send(0);
  void send(1);
  for (let i = 0; i < 12; i++) {
    await new Promise(setImmediate);
    held.shift()?.release();
  }
  await new Promise(setImmediate);
  expect(order.slice(1)).toEqual(order.slice(1).map((_, i) => (i + 1) % 2));
});

test("new lines that are held back let lines that are sent again go, and go when they may", async () => {
  const [a, b] = [new SlotTarget("a", 1), new SlotTarget("b", 1)];
  const route = new SlotRoute(a, b);
  route.holdsNewLinesBack = true;
  const fresh = route.acquire();
  expect(fresh).toBeInstanceOf(Promise);
  expect(route.acquire({ only: [a] })).not.toBeInstanceOf(Promise);
  route.holdsNewLinesBack = false;
  route.queue.recheck();
  expect((await fresh)?.target).toBe(b);
});
