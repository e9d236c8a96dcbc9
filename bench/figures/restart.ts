/** Measures how soon after `kill -9` a server with many batches in progress takes requests again. */
import { type Figure, median } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { type Server, type ServerOptions, Stage } from "../stage.ts";

/** The delay and the number of lines are so large that no batch ends before the kill. */
const ANSWER_DELAY_MS = 250;
const LINE_COUNT = 2_000;
const CONCURRENCY = 64;

export async function measureRestart({ openBatchCount, startRounds }: Sizes): Promise<Figure[]> {
  await using stage = await Stage.open();
  const upstream = await stage.upstream({ delayMs: ANSWER_DELAY_MS });
  const options = { upstreamUrl: upstream.url, maxConcurrency: CONCURRENCY };
  const emptyMs: number[] = [];
  for (let round = 0; round < startRounds; round++) {
    emptyMs.push(await startMs(stage, { ...options, name: `empty-${round}` }));
  }
  const server = await stage.server(options);
  const batchIds = await openBatches(stage, server, openBatchCount);
  await expectAllOpen(server, batchIds);
  await server.kill();
  const openMs: number[] = [];
  for (let round = 0; round < startRounds; round++) openMs.push(await startMs(stage, options));
  return [
    {
      name: "restart",
      title: `Start after kill -9 with ${openBatchCount} open batches, until ready`,
      measured: median(openMs),
      unit: "ms",
      hold: { atMost: 1_000 },
    },
    {
      name: "restart_extra",
      title: "The part beyond a start with no data",
      measured: median(openMs) - median(emptyMs),
      unit: "ms",
    },
  ];
}

/** Starts the server, waits until it is ready, and kills it. */
async function startMs(stage: Stage, options: ServerOptions): Promise<number> {
  const server = await stage.server(options);
  const listeningAtMs = performance.now();
  if (!(await server.api.isReady())) throw new Error("the server listens but is not ready");
  const tookMs = server.startMs + (performance.now() - listeningAtMs);
  await server.kill();
  return tookMs;
}

async function openBatches(stage: Stage, { api }: Server, count: number): Promise<string[]> {
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount: LINE_COUNT });
  const fileId = await api.upload(inputPath);
  const ids: string[] = [];
  while (ids.length < count) ids.push((await api.createBatch(fileId)).id);
  // Batches are validated in order, so the last one comes last.
  using pulse = new Pulse(api, ids.at(-1) ?? "");
  await pulse.reached("in_progress");
  return ids;
}

async function expectAllOpen({ api }: Server, ids: readonly string[]): Promise<void> {
  const batches = await Promise.all(ids.map((id) => api.batch(id)));
  const openCount = batches.filter(({ status }) => status === "in_progress").length;
  if (openCount < ids.length)
    throw new Error(`only ${openCount} of ${ids.length} batches are open`);
}
