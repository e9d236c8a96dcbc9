/**
 * Measures the lines a second of whole batches, from created to completed, against a bare loop of requests, and the
 * memory for them. The first batch after a start and later ones have separate figures. The median of several starts
 * counts.
 */
import { type Figure, MB, median, percentile } from "../figure.ts";
import { type Load, measureRounds, medianRound, type Rounds } from "../rounds.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const BARE_NODE = new URL("../bare-node.js", import.meta.url);

export async function measureThroughput(sizes: Sizes): Promise<Figure[]> {
  const { smallLineCount: lineCount, throughputStarts } = sizes;
  const load: Load = { lineCount, concurrency: 256, delayMs: 0, warmRounds: 2 };
  const starts: Rounds[] = [];
  while (starts.length < throughputStarts) starts.push(await measureRounds(load));
  const count = lineCount.toLocaleString("en");
  return [
    {
      name: "whole_batch_cold",
      title: `First batch after a start, ${count} small lines ÷ bare undici loop`,
      ...medianRound(starts.map(({ cold }) => cold)),
      unit: "lines/s",
      hold: { atLeast: 0.6 },
    },
    {
      name: "whole_batch",
      title: "The next ones, warm",
      ...medianRound(starts.flatMap(({ warm }) => warm)),
      unit: "lines/s",
      hold: { atLeast: 0.75 },
    },
    {
      name: "poll_during_batch",
      title: "GET /v1/batches/{id} meanwhile, p99",
      measured: percentile(
        starts.flatMap(({ latenciesMs }) => latenciesMs),
        0.99,
      ),
      unit: "ms",
      hold: { atMost: 20 },
    },
    ...(await memoryFigures(starts)),
  ];
}

async function memoryFigures(starts: readonly Rounds[]): Promise<Figure[]> {
  await using stage = await Stage.open();
  const bareBytes = await stage.children.measure<number>(BARE_NODE, []);
  return [
    {
      name: "memory_bare",
      title: "Resident memory of Node with nothing in it",
      measured: bareBytes / MB,
      unit: "MB",
    },
    {
      name: "memory_idle",
      title: "Resident memory of the server, idle after a start",
      measured: median(starts.map(({ idleBytes }) => idleBytes)) / MB,
      unit: "MB",
      hold: { atMost: 80 },
    },
    {
      name: "memory_small_batches",
      title: "The most of it during those batches",
      measured: Math.max(...starts.map(({ peakBytes }) => peakBytes)) / MB,
      unit: "MB",
      hold: { atMost: 150 },
    },
  ];
}
