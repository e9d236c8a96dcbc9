import { describe, expect, test } from "vitest";
import type { BatchId } from "../../../src/batch/batch.ts";
import { Turns } from "../../../src/engine/dispatch/fair-admission.ts";
import { FairQueue } from "../../../src/engine/dispatch/fair-queue.ts";
import { Admission } from "../../../src/upstream/admission.ts";
import type { Route } from "../../../src/upstream/upstream.ts";

/** As much of a route as turns know: places, and who waits for one. */
class Places implements Pick<Route, "admit" | "dismiss"> {
  readonly admission = new Admission();
  waitCount = 0;
  mostWaits = 0;

  constructor(limit: number) {
    this.admission.setLimit(limit);
  }

  admit(stop: AbortSignal): boolean | Promise<boolean> {
    const admitted = this.admission.admit(stop);
    if (typeof admitted === "boolean") return admitted;
    this.mostWaits = Math.max(this.mostWaits, ++this.waitCount);
    return admitted.finally(() => {
      this.waitCount--;
    });
  }

  dismiss(): void {
    this.admission.dismiss();
  }
}

function aRoute(limit: number) {
  const places = new Places(limit);
  const share = new FairQueue();
  const turns = new Turns(places as unknown as Route, share);
  const order: string[] = [];
  let count = 0;
  /** A chunk that hands out lines, each as soon as it may, and notes the order. */
  const flow = (name: string, fields: { project?: string; priority?: number } = {}) => {
    const stop = new AbortController();
    const contender = {
      batchId: name as BatchId,
      project: "one",
      priority: 0,
      deadlineAtMs: 1,
      createdAtMs: count++,
      ...fields,
    };
    const admit = turns.admissionsOf(share.join(contender), stop.signal);
    const handOut = async (lineCount: number) => {
      for (let i = 0; i < lineCount; i++) {
        const admitted = admit();
        if (admitted !== true && !(await admitted)) return false;
        order.push(name);
      }
      return true;
    };
    return { admit, handOut, stop };
  };
  /** A place for each of so many lines, one after the other or all at once. */
  const free = async (placeCount: number) => {
    for (let i = 0; i < placeCount; i++) places.dismiss();
    await new Promise(setImmediate);
  };
  return { places, turns, order, flow, free };
}

const countOf = (order: readonly string[], name: string) =>
  order.filter((each) => each === name).length;

describe("the turns of a route", () => {
  test("while there is room, a line goes out without a wait", () => {
    const { flow, turns } = aRoute(3);
    const { admit } = flow("a");
    expect([admit(), admit(), admit()]).toEqual([true, true, true]);
    expect(turns.takeHadToWait()).toBe(false);
  });

  test("a place goes to the batch whose turn it is, not to the one that asked first", async () => {
    const { flow, order, free } = aRoute(4);
    const large = flow("large").handOut(1_000);
    const small = flow("small");
    void small.handOut(3);
    expect(order).toEqual(["large", "large", "large", "large"]);
    // The first place is the large one's, which waited alone.
    for (let i = 0; i < 7; i++) await free(1);
    expect(countOf(order.slice(4), "small")).toBe(3);
    for (let i = 0; i < 10; i++) await free(1);
    expect(order.slice(11)).toEqual(Array(10).fill("large"));
    void large;
  });

  test("places that become free together are shared like those that come one by one", async () => {
    const { flow, order, free } = aRoute(8);
    void flow("first").handOut(8);
    void flow("high", { priority: 10 }).handOut(1_000);
    void flow("low", { priority: -10 }).handOut(1_000);
    // The answers to eight lines at a time.
    for (let i = 0; i < 17; i++) await free(8);
    const shared = order.slice(8);
    expect(shared).toHaveLength(136);
    expect(Math.abs(countOf(shared, "low") - 8)).toBeLessThanOrEqual(1);
  });

  test("of two projects each gets every second place", async () => {
    const { flow, order, free } = aRoute(1);
    void flow("first").handOut(1);
    for (let i = 0; i < 5; i++) void flow(`many-${i}`, { project: "two" }).handOut(100);
    void flow("one").handOut(100);
    for (let i = 0; i < 100; i++) await free(1);
    expect(countOf(order, "one")).toBe(50);
  });

  test("however many wait, the route sees one, and the one that came first", async () => {
    const { flow, free, places } = aRoute(1);
    for (let i = 0; i < 10; i++) void flow(`batch-${i}`).handOut(20);
    for (let i = 0; i < 50; i++) await free(1);
    expect(places.mostWaits).toBe(2);
  });

  test("a stop ends the wait of its own flow only, and no place is lost", async () => {
    const { flow, order, free, places } = aRoute(1);
    void flow("first").handOut(1);
    const leaving = flow("leaving");
    const gone = leaving.handOut(5);
    void flow("staying").handOut(5);
    leaving.stop.abort();
    expect(await gone).toBe(false);
    expect(leaving.admit()).toBe(false);
    await free(1);
    expect(order).toEqual(["first", "staying"]);
    expect(places.admission.free).toBe(0);
  });

  test("when the last one stops nobody waits any more, and the next place is for whoever comes", async () => {
    const { flow, order, free, places } = aRoute(1);
    void flow("first").handOut(1);
    const leaving = flow("leaving");
    const gone = leaving.handOut(5);
    leaving.stop.abort();
    await gone;
    await new Promise(setImmediate);
    expect(places.waitCount).toBe(0);
    await free(1);
    expect(places.admission.free).toBe(1);
    expect(await flow("next").handOut(1)).toBe(true);
    expect(order).toEqual(["first", "next"]);
  });

  test("a place that comes when nobody wants it any more is given back", async () => {
    const { flow, free, places } = aRoute(1);
    void flow("first").handOut(1);
    void flow("alone").handOut(1);
    const leaving = flow("leaving");
    const gone = leaving.handOut(5);
    await free(1);
    // Both in one step: the place is granted, and then it is not needed.
    places.dismiss();
    leaving.stop.abort();
    await gone;
    await new Promise(setImmediate);
    expect(places.admission.free).toBe(1);
  });
});
