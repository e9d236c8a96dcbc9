/** How many requests a dispatcher keeps at a server whose capacity it was not told. */
import { describe, expect, test } from "vitest";
import { MINUTE_MS } from "../support/rate-limits.ts";
import { meanPresent, utilisation } from "../support/station.ts";
import { outcomeCounts, upstreamAt, World } from "../support/world.ts";

/** They are so many that the limit has to be found. */
const MANY = { max_concurrency: 512 };
const ENDLESS = 100_000;

describe("a server that serves so many at a time", () => {
  test.for([
    { capacity: 10, serviceMs: 2_000, lines: 800 },
    { capacity: 24, serviceMs: 800, lines: 1_800 },
    { capacity: 80, serviceMs: 300, lines: 3_600 },
  ])("has $capacity requests, and few in its queue, once the limit is found", async (given) => {
    const { capacity, serviceMs, lines } = given;
    await using world = new World();
    const server = await world.server({ capacity, serviceMs, jitter: 0.3 });
    const dispatcher = world.dispatcher(upstreamAt(server, MANY));

    const [half, end, outcomes] = await world.run(() =>
      Promise.all([
        server.whenServed(lines / 2),
        server.whenServed(lines - 2 * capacity),
        dispatcher.sendLines(lines),
      ]),
    );

    expect(outcomeCounts(outcomes)).toEqual({ "200": lines });
    expect(server.stats().fates).toEqual({ served: lines });
    const settled = meanPresent(half, end) / capacity;
    expect(settled).toBeGreaterThan(0.8);
    expect(settled).toBeLessThan(2);
    expect(utilisation(half, end)).toBeGreaterThan(0.9);
  });

  test("is kept busy while half of it goes and comes back", async () => {
    await using world = new World();
    const server = await world.server({ capacity: 24, serviceMs: 500, jitter: 0.2 });
    const dispatcher = world.dispatcher(upstreamAt(server, MANY));

    await world.run(async () => {
      const sending = dispatcher.sendLines(2_500);
      await world.sleep(20_000);
      server.setCapacity(12);
      await world.sleep(20_000);
      server.setCapacity(24);
      expect(outcomeCounts(await sending)).toEqual({ "200": 2_500 });
    });

    const { atFirstArrival, atLastAnswer, fates } = server.stats();
    expect(fates).toEqual({ served: 2_500 });
    expect(utilisation(atFirstArrival!, atLastAnswer!)).toBeGreaterThan(0.8);

    // Every move of the limit is an event that says why: each begins where the one before has ended.
    const moves = dispatcher.events.all.filter(({ event }) => event === "target.limit_changed");
    expect(moves.length).toBeGreaterThan(4);
    expect(moves.slice(1).map(({ from }) => from)).toEqual(moves.slice(0, -1).map(({ to }) => to));
    const reasons = moves.map(({ reason }) => reason);
    expect(reasons).toEqual(expect.arrayContaining(["climb", "no_gain"]));
  });

  test("has no more requests when it becomes five times as slow, and is as busy again soon", async () => {
    await using world = new World();
    const server = await world.server({ capacity: 20, serviceMs: 300, jitter: 0.2 });
    const dispatcher = world.dispatcher(upstreamAt(server, MANY));

    const stop = new AbortController();
    const { start, rampEnd, settled, end } = await world.run(async () => {
      const sending = dispatcher.sendLines(ENDLESS, { stop: stop.signal });
      const atStart = await server.whenServed(500);
      server.setServiceMs(1_500, { overMs: MINUTE_MS });
      await world.sleep(MINUTE_MS);
      const atRampEnd = server.stats();
      await world.sleep(1.5 * MINUTE_MS);
      const atSettled = server.stats();
      await world.sleep(MINUTE_MS);
      const atEnd = server.stats();
      stop.abort();
      await sending;
      return { start: atStart, rampEnd: atRampEnd, settled: atSettled, end: atEnd };
    });

    expect(meanPresent(start, rampEnd) / 20).toBeLessThan(2.5);
    // That it is not we who make it slow takes a while to find out.
    expect(utilisation(settled, end)).toBeGreaterThan(0.7);
    expect(meanPresent(settled, end) / 20).toBeLessThan(2.5);
  });

  test("is shared fairly, in the long run, by two dispatchers", async () => {
    await using world = new World();
    const server = await world.server({ capacity: 24, serviceMs: 500, jitter: 0.2 });
    const first = world.dispatcher(upstreamAt(server, MANY));
    const second = world.dispatcher(upstreamAt(server, MANY));
    const stop = new AbortController();

    const [from, until] = await world.run(async () => {
      const sending = [first.sendLines(ENDLESS, { stop: stop.signal })];
      // The second one comes when the first has long settled.
      await server.whenServed(1_500);
      sending.push(second.sendLines(ENDLESS, { stop: stop.signal }));
      const totals = [await server.whenServed(3_000), await server.whenServed(9_000)] as const;
      stop.abort();
      await Promise.all(sending);
      return totals;
    });

    const between = server.arrivals.filter(({ atMs }) => atMs >= from.atMs && atMs <= until.atMs);
    const ofSecond = between.filter(({ line }) => line.startsWith("2/")).length;
    expect(ofSecond / between.length).toBeGreaterThan(0.2);
    expect(ofSecond / between.length).toBeLessThan(0.8);
    expect(utilisation(from, until)).toBeGreaterThan(0.9);
    // The later one takes the pace that it meets for normal, so a queue stays: 2.9 were measured.
    expect(meanPresent(from, until) / 24).toBeLessThan(3.5);
  });
});

describe("a server that refuses what it cannot serve", () => {
  test.for([429, 498, 503, 529] as const)("is left alone at once (%i)", async (overloadStatus) => {
    await using world = new World();
    const server = await world.server({
      capacity: 20,
      queueLimit: 5,
      overloadStatus,
      serviceMs: 500,
      jitter: 0.2,
    });
    const dispatcher = world.dispatcher(upstreamAt(server, MANY));

    const refusedAfter = await world.run(async () => {
      const sending = dispatcher.sendLines(1_200);
      await server.whenServed(600);
      const refusedBefore = server.stats().fates.overloaded ?? 0;
      server.setCapacity(5);
      const outcomes = await sending;
      expect(outcomeCounts(outcomes)).toEqual({ "200": 1_200 });
      return (server.stats().fates.overloaded ?? 0) - refusedBefore;
    });

    const { fates, arrived } = server.stats();
    expect(fates.served).toBe(1_200);
    // Those that were under way when it lost three quarters, and a few of the next 600.
    expect(refusedAfter).toBeGreaterThan(0);
    expect(refusedAfter).toBeLessThan(75);
    expect(arrived).toBeLessThan(1_400);
  });
});
