import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { BatchId } from "../../../src/batch/batch.ts";
import type { RouteOutlook } from "../../../src/engine/dispatch/fleet-routes.ts";
import { type Demand, forecastAll, linesUntilDone } from "../../../src/engine/dispatch/forecast.ts";
import type { OpenBatch } from "../../../src/store/batches.ts";

const NOW_MS = 1_800_000_000_000;
const HOUR_MS = 3_600_000;

const batchId = (name: string) => `batch_${name}` as BatchId;

function anOpenBatch(name: string, fields: Partial<OpenBatch> = {}): OpenBatch {
  return {
    batchId: batchId(name),
    project: "one",
    priority: 0,
    createdAtMs: NOW_MS,
    deadlineAtMs: NOW_MS + 24 * HOUR_MS,
    isValidated: true,
    heldCount: 1,
    lostCount: 0,
    remainingLineCount: 1_000,
    work: [{ model: "llama", lineCount: 1_000 }],
    ...fields,
  };
}

const anOutlook = (fields: Partial<RouteOutlook> = {}): RouteOutlook => ({
  key: "llama",
  throughput: { linesPerSecond: 10, isLowerBound: false },
  opensAtMs: 0,
  route: { endOfWork: (startAtMs, workMs) => startAtMs + workMs },
  ...fields,
});

async function forecast(batches: readonly OpenBatch[], outlook: RouteOutlook | null = anOutlook()) {
  const all = await forecastAll({
    batches,
    outlookOf: () => outlook,
    nowMs: NOW_MS,
    waiting: new Map(),
    projectWeightOf: () => 1,
  });
  return batches.map((batch) => all.get(batch.batchId));
}

/** The ideal itself, in small steps of time. */
function simulate(demands: readonly Demand[]): Map<BatchId, number> {
  const left = new Map(demands.map((demand) => [demand, demand.lineCount]));
  const done = new Map<BatchId, number>();
  let served = 0;
  while (left.size > 0) {
    const projects = Map.groupBy(left.keys(), ({ project }) => project);
    const rateOf = (demand: Demand) => {
      const members = projects.get(demand.project)!;
      const weight = members.reduce((sum, each) => sum + each.weight, 0);
      const totalWeight = projects.values().reduce((sum, [one]) => sum + one!.projectWeight, 0);
      return (demand.weight / weight) * (demand.projectWeight / totalWeight);
    };
    const rates = [...left.keys()].map((demand) => [demand, rateOf(demand)] as const);
    const part = Math.min(...rates.map(([demand, rate]) => left.get(demand)! / rate));
    served += part;
    for (const [demand, rate] of rates) {
      const rest = left.get(demand)! - part * rate;
      if (rest > 1e-9) left.set(demand, rest);
      else {
        left.delete(demand);
        done.set(demand.batchId, served);
      }
    }
  }
  return done;
}

const demands = fc
  .array(
    fc.record({
      project: fc.constantFrom("one", "two", "three"),
      weight: fc.constantFrom(0.25, 1, 2, 4),
      lineCount: fc.integer({ min: 1, max: 50_000 }),
    }),
    { minLength: 1, maxLength: 12 },
  )
  .map((list) =>
    list.map((each, i) => {
      const projectWeight = { one: 1, two: 2, three: 5 }[each.project];
      return { ...each, projectWeight, batchId: batchId(String(i)) };
    }),
  );

describe("the end of every batch", () => {
  test("is its end in the ideal that the scheduler follows", async () => {
    await fc.assert(
      fc.asyncProperty(demands, async (list) => {
        const expected = simulate(list);
        const found = await linesUntilDone(list);
        for (const { batchId: id } of list) expect(found.get(id)).toBeCloseTo(expected.get(id)!, 3);
      }),
    );
  });

  test("follows from the lines to go, the throughput and the other batches", async () => {
    const alone = anOpenBatch("a");
    expect((await forecast([alone]))[0]?.etaAtMs).toBe(NOW_MS + 100_000);
    const [first, second] = await forecast([
      anOpenBatch("a", { remainingLineCount: 100 }),
      anOpenBatch("b", { remainingLineCount: 900 }),
    ]);
    expect([first?.etaAtMs, second?.etaAtMs]).toEqual([NOW_MS + 20_000, NOW_MS + 100_000]);
  });

  test("waits until the route opens", async () => {
    const [found] = await forecast([anOpenBatch("a")], anOutlook({ opensAtMs: NOW_MS + HOUR_MS }));
    expect(found).toMatchObject({ etaAtMs: NOW_MS + HOUR_MS + 100_000, isAtRisk: false });
  });

  test("is the end of its slowest route", async () => {
    const work = [
      { model: "fast", lineCount: 500 },
      { model: "slow", lineCount: 500 },
    ];
    const outlookOf = (key: string) =>
      anOutlook({
        key,
        throughput: { linesPerSecond: key === "fast" ? 100 : 1, isLowerBound: false },
      });
    const all = await forecastAll({
      batches: [anOpenBatch("a", { work })],
      outlookOf,
      nowMs: NOW_MS,
      waiting: new Map(),
      projectWeightOf: () => 1,
    });
    expect(all.get(batchId("a"))?.etaAtMs).toBe(NOW_MS + 500_000);
  });

  test("is unknown before anything was measured, and before the lines are known", async () => {
    expect((await forecast([anOpenBatch("a")], anOutlook({ throughput: null })))[0]).toMatchObject({
      etaAtMs: null,
      isAtRisk: false,
    });
    const validating = anOpenBatch("a", { isValidated: false, work: [], remainingLineCount: 0 });
    expect((await forecast([validating]))[0]).toMatchObject({ etaAtMs: null, isAtRisk: false });
  });
});

describe("a batch is at risk", () => {
  const dueIn = (seconds: number) => anOpenBatch("a", { deadlineAtMs: NOW_MS + seconds * 1_000 });

  test("when its end, with a margin of a tenth, comes after its deadline", async () => {
    expect((await forecast([dueIn(111)]))[0]?.isAtRisk).toBe(false);
    expect((await forecast([dueIn(109)]))[0]?.isAtRisk).toBe(true);
  });

  test("but not for a throughput that nothing has put to the test yet", async () => {
    const throughput = { linesPerSecond: 0.1, isLowerBound: true };
    expect((await forecast([dueIn(109)], anOutlook({ throughput })))[0]?.isAtRisk).toBe(false);
  });

  test("when its route does not open in time, or there is none any more", async () => {
    const closed = anOutlook({ opensAtMs: NOW_MS + 200_000, throughput: null });
    expect((await forecast([dueIn(200)], closed))[0]?.isAtRisk).toBe(true);
    expect((await forecast([dueIn(201)], closed))[0]?.isAtRisk).toBe(false);
    expect((await forecast([dueIn(201)], null))[0]).toMatchObject({
      isAtRisk: true,
      etaAtMs: null,
    });
  });
});

test("the queue of a project is those that wait, by deadline, with those that are not validated behind", async () => {
  const found = await forecast([
    anOpenBatch("other", { project: "two", heldCount: 0, createdAtMs: NOW_MS - 1 }),
    anOpenBatch("validating", { isValidated: false, heldCount: 0, work: [] }),
    anOpenBatch("later", { heldCount: 0, createdAtMs: NOW_MS + 1 }),
    anOpenBatch("next", { heldCount: 0 }),
    anOpenBatch("sending"),
  ]);
  expect(found.map((each) => each?.queuePosition)).toEqual([1, 3, 2, 1, 0]);
});
