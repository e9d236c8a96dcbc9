/** How many lines a second a whole batch makes, from created to completed, against a bare loop of requests. */
import { type Figure, percentile } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const CONCURRENCY = 256;
const UNDICI_LOOP = new URL("../undici-loop.ts", import.meta.url);

export async function measureThroughput({ smallLineCount }: Sizes): Promise<Figure[]> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount: smallLineCount });
  const upstream = await stage.upstream();
  const loopArgs = [upstream.url, inputPath, String(CONCURRENCY)];
  const before = await stage.children.measure<number>(UNDICI_LOOP, loopArgs);
  const server = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: CONCURRENCY });
  const fileId = await server.api.upload(inputPath);

  const startedAtMs = performance.now();
  const { id } = await server.api.createBatch(fileId);
  using pulse = new Pulse(server.api, id);
  const batch = await pulse.reached("completed");
  const tookMs = performance.now() - startedAtMs;
  expectAllAnswered(batch, smallLineCount);

  await server.kill();
  const after = await stage.children.measure<number>(UNDICI_LOOP, loopArgs);
  return [
    {
      name: "whole_batch",
      title: `Whole batch of ${smallLineCount.toLocaleString("en")} small lines ÷ bare undici loop`,
      measured: (smallLineCount / tookMs) * 1000,
      unit: "lines/s",
      floor: (before + after) / 2,
      hold: { atLeast: 0.6 },
    },
    {
      name: "poll_during_batch",
      title: "GET /v1/batches/{id} meanwhile, p99",
      measured: percentile(pulse.latenciesMs, 0.99),
      unit: "ms",
      hold: { atMost: 50 },
    },
  ];
}
