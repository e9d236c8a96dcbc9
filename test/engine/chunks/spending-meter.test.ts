/** No two chunks spend the same part of a budget, and a line that fits later waits instead of ending its chunk. */
import { expect, test } from "vitest";
import { amountOf } from "../../../src/batch/price.ts";
import type { Spending } from "../../../src/batch/spending.ts";
import { UNLIMITED } from "../../../src/config/projects.ts";
import { meterFor } from "../../../src/engine/chunks/spending-meter.ts";
import { Events } from "../../support/events.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { leasesBench } from "../../support/leases.ts";
import { claimFirst, startBatch } from "../../support/store-builders.ts";

const costing = (cost: string): Spending => ({ tokens: 1, cost: amountOf(cost) });

const bench = forAllTests(await leasesBench());

/**
 * A batch with the budget, and the meters of its chunks. `flushCount` counts how often a meter asked for durable records, and
 * `askCount` how often the store.
 */
async function metered(budget: string | null) {
  const { store, leases, clock } = bench;
  const { batch } = await startBatch(store, ["a", "b"], { budget });
  const events = new Events();
  const all = { batch, events, flushCount: 0, askCount: 0, meterOf };
  const reserveIfLeased: typeof store.reserveIfLeased = (...question) => {
    all.askCount++;
    return store.reserveIfLeased(...question);
  };
  const counted = { reserveIfLeased };
  const deps = { store: counted, leases, clock, log: events.log, rulesOf: () => UNLIMITED };
  async function meterOf(model: string) {
    const claim = { ...(await leases.claim()), batchId: batch.id, model };
    const claimed = (await claimFirst(store, claim))!;
    const run = leases.holdChunk(claimed.lease, claimed.batch.budget);
    const flush = async () => void all.flushCount++;
    return { claimed, run, meter: meterFor({ claimed, run, flush }, deps) };
  }
  return all;
}

test("a chunk of a batch without a budget, in a project without quotas, has no meter", async () => {
  const chunks = await metered(null);
  expect((await chunks.meterOf("a")).meter).toBeNull();
});

test("where there is room, the first line asks for all lines of its chunk, and those after it do not ask", async () => {
  const chunks = await metered("1000");
  const { meter, claimed } = await chunks.meterOf("a");
  expect(claimed.chunk.lineCount).toBe(10);
  expect(await meter!.admit(costing("1"))).toBe(true);
  const later = Array.from({ length: 9 }, () => meter!.admit(costing("1")));
  expect(later).toEqual(later.map(() => true));
});

test("a line that fits only if those before it take less waits for their records, and goes out then", async () => {
  const chunks = await metered("10");
  const { meter, run } = await chunks.meterOf("a");
  expect(await meter!.admit(costing("6"))).toBe(true);
  const waiting = meter!.admit(costing("6"));
  await expect.poll(() => chunks.flushCount).toBe(1);
  meter!.settle(costing("6"));
  bench.clock.advance(2_000);
  expect(await waiting).toBe(true);
  expect(run.endReason).toBeNull();
});

test("a chunk whose lines wait gives back what it has reserved for them and for those behind them", async () => {
  const chunks = await metered("100");
  const [slow, other] = [await chunks.meterOf("a"), await chunks.meterOf("b")];
  const line = slow.meter!.allowance(costing("1"));
  expect(await line.admit()).toBe(true);
  // All ten lines of the slow chunk have their part, and the first one does not get out.
  line.giveBack();
  expect(line.take()).toBe(true);
  line.giveBack();
  let isAdmitted: boolean | null = null;
  void Promise.resolve(other.meter!.admit(costing("100"))).then((admitted) => {
    isAdmitted = admitted;
  });
  const afterMore = () => {
    bench.clock.advance(2_000);
    return isAdmitted;
  };
  await expect.poll(afterMore).toBe(true);
  // Now there is no room for it, until the other one has taken less.
  expect(await line.take()).toBe(false);
  other.meter!.settle(costing("100"));
  await bench.store.closeChunkIfLeased(other.claimed.lease, null);
  bench.clock.advance(1_000);
  expect(await line.take()).toBe(true);
});

test("of the lines that go on at the same time one asks the store, whether there is room or not", async () => {
  const chunks = await metered("100");
  const { meter } = await chunks.meterOf("a");
  const other = await chunks.meterOf("b");
  const lines = Array.from({ length: 10 }, () => meter!.allowance(costing("1")));
  expect(await Promise.all(lines.map((line) => line.take()))).toEqual(Array(10).fill(true));
  expect(chunks.askCount).toBe(1);
  expect(await other.meter!.admit(costing("20"))).toBe(true);
  chunks.askCount = 0;
  const more = Array.from({ length: 10 }, () => meter!.allowance(costing("70")).take());
  expect(await Promise.all(more)).toEqual(Array(10).fill(false));
  expect(chunks.askCount).toBe(1);
});

test("lines that go out at the same time have the sum of their estimates reserved", async () => {
  const chunks = await metered("10");
  const { meter } = await chunks.meterOf("a");
  const other = await chunks.meterOf("b");
  const lines = ["3", "3", "3"].map((cost) => meter!.allowance(costing(cost)));
  expect(await Promise.all(lines.map((line) => line.take()))).toEqual([true, true, true]);
  expect(await other.meter!.allowance(costing("2")).take()).toBe(false);
  lines[0]!.settle();
  expect(await lines[1]!.take()).toBe(true);
  expect(await meter!.allowance(costing("4")).take()).toBe(true);
  expect(await other.meter!.allowance(costing("1")).take()).toBe(false);
});

test("a line that does not fit by itself pauses its batch and ends the run", async () => {
  const chunks = await metered("10");
  const { batch, events } = chunks;
  const { meter, run } = await chunks.meterOf("a");
  expect(await meter!.admit(costing("11"))).toBe(false);
  expect(run.endReason).toBe("pause");
  expect((await bench.store.findBatch(batch))?.paused).toMatchObject({ reason: "budget" });
  expect(events.count("batch.paused", { batch: batch.id, reason: "budget" })).toBe(1);
});

test("after a pause of the machine, what a chunk has reserved is not granted to another", async () => {
  const chunks = await metered("10");
  const [one, other] = [await chunks.meterOf("a"), await chunks.meterOf("b")];
  expect(await one.meter!.admit(costing("9"))).toBe(true);
  bench.clock.advance(60 * 60 * 1000);
  const admitted = other.meter!.admit(costing("2"));
  other.run.end("drain", null, bench.clock);
  expect(await admitted).toBe(false);
});
