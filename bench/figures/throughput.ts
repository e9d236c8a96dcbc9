/** How many lines a second a whole batch makes, from created to completed, against a bare loop of requests. */
import { type Figure, percentile } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const CONCURRENCY = 256;
const UNDICI_LOOP = new URL("../undici-loop.ts", import.meta.url);

export async function measureThroughput({
  smallLineCount,
  throughputRounds,
}: Sizes): Promise<Figure[]> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount: smallLineCount });
  const upstream = await stage.upstream();
  const loopArgs = [upstream.url, inputPath, String(CONCURRENCY)];
  const measureFloor = () => stage.children.measure<number>(UNDICI_LOOP, loopArgs);
  const { api } = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: CONCURRENCY });
  const fileId = await api.upload(inputPath);
  const latenciesMs: number[] = [];
  const rounds: { measured: number; floor: number }[] = [];
  let floorBefore = await measureFloor();
  for (let round = 0; round < throughputRounds; round++) {
    const startedAtMs = performance.now();
    const { id } = await api.createBatch(fileId);
    using pulse = new Pulse(api, id);
    const batch = await pulse.reached("completed");
    const tookMs = performance.now() - startedAtMs;
    expectAllAnswered(batch, smallLineCount);
    latenciesMs.push(...pulse.latenciesMs);
    const floorAfter = await measureFloor();
    const measured = (smallLineCount / tookMs) * 1000;
    rounds.push({ measured, floor: (floorBefore + floorAfter) / 2 });
    floorBefore = floorAfter;
  }
  const { measured, floor } = medianOf(rounds);
  return [
    {
      name: "whole_batch",
      title: `Whole batch of ${smallLineCount.toLocaleString("en")} small lines ÷ bare undici loop`,
      measured,
      unit: "lines/s",
      floor,
      hold: { atLeast: 0.6 },
    },
    {
      name: "poll_during_batch",
      title: "GET /v1/batches/{id} meanwhile, p99",
      measured: percentile(latenciesMs, 0.99),
      unit: "ms",
      hold: { atMost: 50 },
    },
  ];
}

/** By ratio: one round alone is as noisy as the machine. */
function medianOf(rounds: { measured: number; floor: number }[]) {
  const sorted = rounds.toSorted((a, b) => a.measured / a.floor - b.measured / b.floor);
  const middle = sorted[Math.floor(sorted.length / 2)];
  if (middle === undefined) throw new Error("no round was measured");
  return middle;
}
