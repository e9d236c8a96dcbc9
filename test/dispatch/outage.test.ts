/** Targets that go down, for an hour, in the ways in which they do. */
import { describe, expect, test } from "vitest";
import { outcomeCounts, upstreamAt, World } from "../support/world.ts";

const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
const OUTAGES = ["refuse", "reset", 502, 503, 521] as const;
/** An hour of probes that are half a minute apart, and some. */
const FEW = 200;

describe.for(OUTAGES)("an only target that is down for an hour (%s)", (outage) => {
  test("costs no line, and is only probed meanwhile", async () => {
    await using world = new World();
    const server = await world.server({ capacity: 20, serviceMs: 1_000, jitter: 0.2 });
    const dispatcher = world.dispatcher(upstreamAt(server));
    const circuit = () => dispatcher.upstreams.listTargets()[0]!.circuit;

    const outcomes = await world.run(async () => {
      const sending = dispatcher.sendLines(300);
      await server.whenServed(150);
      expect(circuit()).toBe("closed");
      const underWay = server.inFlight;
      await server.goDown(outage);
      await world.sleep(10 * MINUTE_MS);
      expect(["open", "half_open"]).toContain(circuit());
      const probesBefore = dispatcher.events.count("target.circuit_half_open");
      const arrivalsBefore = server.arrivals.length;
      await world.sleep(50 * MINUTE_MS);
      const probes = dispatcher.events.count("target.circuit_half_open") - probesBefore;
      expect(probes).toBeGreaterThan(10);
      expect(probes).toBeLessThan(FEW);
      // Whatever knocks is a probe.
      const knocks = server.arrivals.length - arrivalsBefore;
      expect(knocks).toBe(outage === "refuse" ? 0 : probes);
      await server.comeUp();
      const all = await sending;
      // Those that were there, those until it was believed, and the probes.
      expect(server.stats().fates.down ?? 0).toBeLessThan(underWay + 2 * FEW);
      return all;
    });

    expect(outcomeCounts(outcomes)).toEqual({ "200": 300 });
    expect(server.stats().fates.served).toBe(300);
    expect(circuit()).toBe("closed");
    expect(dispatcher.events.count("target.circuit_closed")).toBe(1);
    const opened = dispatcher.events.count("target.circuit_opened");
    // Each probe that failed opened it again.
    expect(opened).toBe(dispatcher.events.count("target.circuit_half_open"));
  });
});

test.for(OUTAGES)(
  "lines go on at the other target while one is down for an hour (%s)",
  async (outage) => {
    await using world = new World();
    const [down, up] = [
      await world.server({ serviceMs: 500 }),
      await world.server({ serviceMs: 500 }),
    ];
    const dispatcher = world.dispatcher(
      upstreamAt(down, { name: "down" }),
      upstreamAt(up, { name: "up" }),
    );

    const knocks = await world.run(async () => {
      await down.goDown(outage);
      // Six at a time, every twenty seconds.
      for (let sent = 0; sent < 6 * 180; sent += 6) {
        const startedAtMs = world.clock.nowMs();
        expect(outcomeCounts(await dispatcher.sendLines(6))).toEqual({ "200": 6 });
        expect(world.clock.nowMs() - startedAtMs).toBeLessThan(10_000);
        await world.sleep(startedAtMs + HOUR_MS / 180 - world.clock.nowMs());
      }
      const knocksWhileDown = down.arrivals.length;
      await down.comeUp();
      await world.sleep(MINUTE_MS);
      await dispatcher.sendInTurn(30);
      return knocksWhileDown;
    });

    expect(up.arrivals.length).toBeGreaterThanOrEqual(6 * 180);
    expect(knocks).toBeLessThan(FEW);
    // It has its share again.
    expect(down.stats().fates.served).toBeGreaterThan(5);
  },
);

test("a target that goes down again and again, in every way, loses no line", async () => {
  await using world = new World();
  const server = await world.server({ capacity: 10, serviceMs: 400, jitter: 0.5 });
  const dispatcher = world.dispatcher(upstreamAt(server));

  const outcomes = await world.run(async () => {
    const sending = dispatcher.sendLines(1_000);
    for (let round = 0; round < 12; round++) {
      await world.sleep(2_000 + 500 * round);
      await server.goDown(OUTAGES[round % OUTAGES.length] ?? "refuse");
      await world.sleep(1_000 * round);
      await server.comeUp();
    }
    return sending;
  });

  expect(outcomeCounts(outcomes)).toEqual({ "200": 1_000 });
});
