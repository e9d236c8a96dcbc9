/** Lines of batches that wait for the night, and interactive requests, which do not. */
import { expect, test } from "vitest";
import { outcomeCounts, upstreamAt, World } from "../support/world.ts";

const HOUR_MS = 3_600_000;
const hourOf = (atMs: number) => new Date(atMs).getUTCHours();
const isNight = (atMs: number) => hourOf(atMs) >= 22 || hourOf(atMs) < 6;
/** The clock of the world begins at eight in the morning. */
const nights = { windows: [{ from: "22:00", to: "06:00" }] };

test("nothing goes out outside the window, and everything within", async () => {
  await using world = new World();
  const server = await world.server({ capacity: 4, serviceMs: 10 * 60_000 });
  const dispatcher = world.dispatcher(
    upstreamAt(server, {
      min_concurrency: 4,
      max_concurrency: 4,
      schedule: nights,
      timeout_seconds: 3_600,
    }),
  );

  const outcomes = await world.run(() => dispatcher.sendLines(300));

  expect(outcomeCounts(outcomes)).toEqual({ "200": 300 });
  expect(server.arrivals.filter(({ atMs }) => !isNight(atMs))).toEqual([]);
  // Eight hours of four times six; the rest goes the next night.
  const [first] = server.arrivals;
  const firstNight = server.arrivals.filter(({ atMs }) => atMs < first!.atMs + 8 * HOUR_MS);
  expect(hourOf(first!.atMs)).toBe(22);
  expect(firstNight).toHaveLength(192);
});

test("outside the window there are as many lines as the schedule says", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 60_000 });
  const schedule = { ...nights, concurrency_inside: 6, concurrency_outside: 2 };
  const dispatcher = world.dispatcher(
    upstreamAt(server, { min_concurrency: 7, max_concurrency: 7, schedule }),
  );

  await world.run(() => dispatcher.sendLines(2 * 14 * 60 + 6 * 60));

  const byDay = server.arrivals.filter(({ atMs }) => !isNight(atMs));
  expect(byDay).toHaveLength(2 * 14 * 60);
  expect(server.arrivals).toHaveLength(2 * 14 * 60 + 6 * 60);
  expect(server.stats().maxPresent).toBeLessThanOrEqual(8);
});

test("interactive requests are served at any time", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 1_000 });
  const dispatcher = world.dispatcher(upstreamAt(server, { schedule: nights }));
  const stop = new AbortController();

  await world.run(async () => {
    const sending = dispatcher.sendLines(10, { stop: stop.signal });
    expect(await dispatcher.ask("in the morning")).toBe(200);
    await world.sleep(6 * HOUR_MS);
    expect(await dispatcher.ask("in the afternoon")).toBe(200);
    stop.abort();
    await sending;
  });

  expect(server.arrivals.map(({ line }) => line)).toEqual(["in the morning", "in the afternoon"]);
});

test("an interactive request goes out at once, however many lines there are", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 2_000, jitter: 0.5 });
  const dispatcher = world.dispatcher(
    upstreamAt(server, { min_concurrency: 8, max_concurrency: 8, interactive_reserve: 1 }),
  );

  const asked = await world.run(async () => {
    const sending = dispatcher.sendLines(300);
    const askedAtMs: number[] = [];
    for (let i = 0; i < 20; i++) {
      askedAtMs.push(world.clock.nowMs());
      expect(await dispatcher.ask("somebody")).toBe(200);
    }
    await sending;
    return askedAtMs;
  });

  const arrivedAtMs = server.arrivals
    .filter(({ line }) => line === "somebody")
    .map(({ atMs }) => atMs);
  expect(arrivedAtMs).toEqual(asked);
  expect(server.stats().maxPresent).toBe(8);
});
