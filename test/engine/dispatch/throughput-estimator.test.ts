import { describe, expect, test } from "vitest";
import { ThroughputEstimator } from "../../../src/engine/dispatch/throughput-estimator.ts";

const SECOND_MS = 1_000;

/** Does so many seconds of work, with some lines in each. */
function work(
  meter: ThroughputEstimator,
  fields: { from: number; seconds: number; lines: number },
) {
  const { from, seconds, lines } = fields;
  for (let second = from; second < from + seconds; second++) {
    for (let i = 0; i < lines; i++) meter.count();
    meter.sample((second + 1) * SECOND_MS, "full");
  }
}

describe("the throughput of a route", () => {
  test("is unknown until a line has ended", () => {
    const meter = new ThroughputEstimator();
    meter.begin(0);
    meter.sample(5 * SECOND_MS, "full");
    expect(meter.throughput).toBeNull();
  });

  test("counts the time until the first answer, too", () => {
    const meter = new ThroughputEstimator();
    meter.begin(0);
    work(meter, { from: 0, seconds: 9, lines: 0 });
    work(meter, { from: 9, seconds: 1, lines: 64 });
    expect(meter.throughput).toEqual({ linesPerSecond: 6.4, isLowerBound: false });
  });

  test("is not lowered by time without work", () => {
    const meter = new ThroughputEstimator();
    meter.begin(0);
    work(meter, { from: 0, seconds: 10, lines: 20 });
    meter.end(10 * SECOND_MS);
    meter.sample(5_000 * SECOND_MS, "idling");
    meter.begin(9_000 * SECOND_MS);
    work(meter, { from: 9_000, seconds: 10, lines: 20 });
    expect(meter.throughput?.linesPerSecond).toBeCloseTo(20, 6);
  });

  test("is not lowered by work that leaves places empty, but may be raised", () => {
    const meter = new ThroughputEstimator();
    meter.begin(0);
    work(meter, { from: 0, seconds: 10, lines: 20 });
    meter.count();
    meter.sample(12 * SECOND_MS, "idling");
    expect(meter.throughput?.linesPerSecond).toBeCloseTo(20, 6);
    for (let i = 0; i < 100; i++) meter.count();
    meter.sample(13 * SECOND_MS, "idling");
    expect(meter.throughput?.linesPerSecond).toBeGreaterThan(20);
  });

  test("is a lower bound while no line has had to wait", () => {
    const meter = new ThroughputEstimator();
    meter.begin(0);
    meter.count();
    meter.sample(10 * SECOND_MS, "idling");
    expect(meter.throughput).toEqual({ linesPerSecond: 0.1, isLowerBound: true });
    work(meter, { from: 10, seconds: 5, lines: 30 });
    expect(meter.throughput).toEqual({ linesPerSecond: 30, isLowerBound: false });
  });

  test("follows a change within minutes, and a standstill at once", () => {
    const meter = new ThroughputEstimator();
    meter.begin(0);
    work(meter, { from: 0, seconds: 600, lines: 100 });
    work(meter, { from: 600, seconds: 180, lines: 10 });
    expect(meter.throughput?.linesPerSecond).toBeLessThan(20);
    expect(meter.throughput?.linesPerSecond).toBeGreaterThan(9);
    work(meter, { from: 780, seconds: 100, lines: 0 });
    expect(meter.throughput?.linesPerSecond).toBeCloseTo(0.01, 6);
  });
});
