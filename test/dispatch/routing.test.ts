/** A model that several targets serve. */
import { describe, expect, test } from "vitest";
import { utilisation } from "../support/station.ts";
import { outcomeCounts, upstreamAt, World } from "../support/world.ts";

const linesAt = (server: { arrivals: readonly { line: string }[] }) =>
  server.arrivals.map(({ line }) => line);

const inLanes = <T>(count: number, work: () => Promise<T[]>) =>
  Promise.all(Array.from({ length: count }, work)).then((all) => all.flat());

test("targets get lines by their weights", async () => {
  await using world = new World();
  const [heavy, light] = [
    await world.server({ serviceMs: 500, jitter: 0.2 }),
    await world.server({ serviceMs: 500, jitter: 0.2 }),
  ];
  const dispatcher = world.dispatcher(
    upstreamAt(heavy, { name: "heavy", weight: 3 }),
    upstreamAt(light, { name: "light", weight: 1 }),
  );

  const outcomes = await world.run(() => inLanes(8, () => dispatcher.sendInTurn(100)));

  expect(outcomeCounts(outcomes)).toEqual({ "200": 800 });
  const share = heavy.arrivals.length / 800;
  expect(share).toBeGreaterThan(0.65);
  expect(share).toBeLessThan(0.85);
});

test("a target that takes four times as long gets fewer lines than the other", async () => {
  await using world = new World();
  const quick = await world.server({ capacity: 20, serviceMs: 200, jitter: 0.2 });
  const slow = await world.server({ capacity: 20, serviceMs: 800, jitter: 0.2 });
  const dispatcher = world.dispatcher(
    upstreamAt(quick, { name: "quick" }),
    upstreamAt(slow, { name: "slow" }),
  );

  const outcomes = await world.run(() => dispatcher.sendLines(2_000));

  expect(outcomeCounts(outcomes)).toEqual({ "200": 2_000 });
  expect(quick.arrivals.length).toBeGreaterThan(2.5 * slow.arrivals.length);
  for (const server of [quick, slow]) {
    const { atFirstArrival, atLastAnswer } = server.stats();
    expect(utilisation(atFirstArrival!, atLastAnswer!)).toBeGreaterThan(0.8);
  }
});

describe("a target of second priority", () => {
  const first = { name: "first", min_concurrency: 4, max_concurrency: 4 };
  const second = { name: "second", priority: 1 };

  test("gets nothing while the first has room", async () => {
    await using world = new World();
    const [main, spare] = [await world.server({ serviceMs: 100 }), await world.server()];
    const dispatcher = world.dispatcher(upstreamAt(main, first), upstreamAt(spare, second));

    const outcomes = await world.run(() => inLanes(4, () => dispatcher.sendInTurn(50)));

    expect(outcomeCounts(outcomes)).toEqual({ "200": 200 });
    expect(spare.arrivals).toEqual([]);
  });

  test("gets what the first is too full for", async () => {
    await using world = new World();
    const main = await world.server({ serviceMs: 300, jitter: 0.2, capacity: 4 });
    const spare = await world.server({ serviceMs: 300, jitter: 0.2 });
    const dispatcher = world.dispatcher(upstreamAt(main, first), upstreamAt(spare, second));

    await world.run(() => inLanes(6, () => dispatcher.sendInTurn(100)));

    const { atFirstArrival, atLastAnswer, maxPresent } = main.stats();
    expect(maxPresent).toBe(4);
    expect(utilisation(atFirstArrival!, atLastAnswer!)).toBeGreaterThan(0.95);
    expect(spare.arrivals.length).toBeGreaterThan(100);
  });

  test.for(["refuse", 503] as const)(
    "takes over when the first is down (%s), and no longer",
    async (outage) => {
      await using world = new World();
      const main = await world.server({ serviceMs: 100 });
      const spare = await world.server({ serviceMs: 100 });
      const dispatcher = world.dispatcher(upstreamAt(main, first), upstreamAt(spare, second));

      const [sparesWhileDown, sparesInTheEnd] = await world.run(async () => {
        await main.goDown(outage);
        const whileDown = await inLanes(4, () => dispatcher.sendInTurn(50));
        expect(outcomeCounts(whileDown)).toEqual({ "200": 200 });
        const served = spare.arrivals.length;
        await main.comeUp();
        await world.sleep(120_000);
        // One of these finds out that the first is back.
        await dispatcher.sendInTurn(4);
        const before = spare.arrivals.length;
        const after = await inLanes(4, () => dispatcher.sendInTurn(50));
        expect(outcomeCounts(after)).toEqual({ "200": 200 });
        return [served, spare.arrivals.length - before];
      });

      expect(sparesWhileDown).toBe(200);
      expect(sparesInTheEnd).toBe(0);
    },
  );
});

test.for(["refuse", "reset", 502, 503] as const)(
  "a line that fails at one target is answered by another (%s)",
  async (outage) => {
    await using world = new World();
    const [broken, sound] = [await world.server(), await world.server({ serviceMs: 50 })];
    const dispatcher = world.dispatcher(
      upstreamAt(broken, { name: "broken" }),
      upstreamAt(sound, { name: "sound" }),
    );

    const outcomes = await world.run(async () => {
      await broken.goDown(outage);
      return dispatcher.sendLines(300);
    });

    expect(outcomeCounts(outcomes)).toEqual({ "200": 300 });
    expect(new Set(linesAt(sound)).size).toBe(300);
    expect(sound.arrivals).toHaveLength(300);
    // So many fail that no line is tried there any more.
    expect(broken.arrivals.length).toBeLessThan(100);
  },
);

test("each target is asked for the model by the name that it goes by there", async () => {
  await using world = new World();
  const [east, west] = [
    await world.server({ serviceMs: 50 }),
    await world.server({ serviceMs: 50 }),
  ];
  const named = (upstream_model: string) => ({ models: [{ name: "public", upstream_model }] });
  const dispatcher = world.dispatcher(
    upstreamAt(east, { name: "east", ...named("east-7b") }),
    upstreamAt(west, { name: "west", ...named("west-7b-fp8") }),
  );

  const outcomes = await world.run(() => dispatcher.sendLines(100, { model: "public" }));

  expect(outcomeCounts(outcomes)).toEqual({ "200": 100 });
  expect(new Set(east.arrivals.map(({ model }) => model))).toEqual(new Set(["east-7b"]));
  expect(new Set(west.arrivals.map(({ model }) => model))).toEqual(new Set(["west-7b-fp8"]));
});
