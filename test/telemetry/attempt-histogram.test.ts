import fc from "fast-check";
import { Histogram, type Metric, Registry } from "prom-client";
import { expect, test } from "vitest";
import { AttemptHistogram } from "../../src/telemetry/attempt-histogram.ts";

const described = {
  name: "wait_seconds",
  help: "How long.",
  labelNames: ["target", "lane"] as const,
  buckets: [0.005, 0.1, 1, 60],
};

test("what is observed shows as prom-client would show it", async () => {
  const target = fc.constantFrom("a", 'with "quotes"');
  const seconds = fc.oneof(
    fc.constantFrom(0, 0.005, 0.1, 1, 60, 61),
    fc.double({ min: 0, max: 99, noNaN: true }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(fc.tuple(target, seconds)), async (observed) => {
      const ours = new AttemptHistogram(described);
      const [registry, oracleRegistry] = [new Registry(), new Registry()];
      registry.registerMetric(ours as unknown as Metric<"target" | "lane">);
      const oracle = new Histogram({ ...described, registers: [oracleRegistry] });
      const known = new Map(
        ["a", 'with "quotes"'].map((name) => [name, ours.labels(name, "batch")]),
      );
      for (const [name, value] of observed) {
        known.get(name)?.observe(value);
        oracle.labels(name, "batch").observe(value);
      }
      const lines = async (of: Registry) => (await of.metrics()).split("\n").toSorted();
      expect(await lines(registry)).toEqual(await lines(oracleRegistry));
    }),
  );
});
