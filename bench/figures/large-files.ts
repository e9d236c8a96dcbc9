/**
 * Measures the memory for large files. It runs a batch of 1 GB in and out, with upload and download, and a batch with a
 * tenth of it. Each run has a server of its own, whose peak is then read.
 */
import { stat } from "node:fs/promises";
import { type Figure, MB, percentile } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { peakResidentBytes } from "../memory.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import { LARGE_LINE_BYTES, type Sizes } from "../sizes.ts";
import { type Server, Stage } from "../stage.ts";

const CONCURRENCY = 256;

interface LargeRun {
  readonly inputBytes: number;
  readonly outputBytes: number;
  readonly peakBytes: number;
  readonly validatingMs: number;
  readonly latenciesMs: readonly number[];
}

async function run(lineCount: number): Promise<LargeRun> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount, lineBytes: LARGE_LINE_BYTES });
  const upstream = await stage.upstream({ answerBytes: LARGE_LINE_BYTES });
  const server = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: CONCURRENCY });
  using pulse = new Pulse(server.api, await runSmallBatch(stage, server));

  const fileId = await server.api.upload(inputPath);
  const createdAtMs = performance.now();
  const { id } = await server.api.createBatch(fileId);
  pulse.turnTo(id);
  await pulse.reached("in_progress");
  const validatingMs = performance.now() - createdAtMs;
  const batch = await pulse.reached("completed");
  expectAllAnswered(batch, lineCount);
  const outputBytes = await server.api.download(batch.output_file_id ?? "", null);
  return {
    inputBytes: (await stat(inputPath)).size,
    outputBytes,
    peakBytes: peakResidentBytes(server.pid),
    validatingMs,
    latenciesMs: pulse.latenciesMs,
  };
}

/** Runs a small batch, so that the pulse has a batch to ask for while the large file is still on its way. */
async function runSmallBatch(stage: Stage, server: Server): Promise<string> {
  const path = stage.path("small.jsonl");
  await writeInput(path, { lineCount: 10 });
  const { id } = await server.api.createBatch(await server.api.upload(path));
  using pulse = new Pulse(server.api, id);
  await pulse.reached("completed");
  return id;
}

const inMegabytes = (bytes: number) => `${Math.round(bytes / MB).toLocaleString("en")} MB`;

export async function measureLargeFiles(sizes: Sizes): Promise<Figure[]> {
  const small = await run(sizes.flatLineCount);
  const large = await run(sizes.largeLineCount);
  const inAndOut = `${inMegabytes(large.inputBytes)} in, ${inMegabytes(large.outputBytes)} out`;
  return [
    {
      name: "memory",
      title: `Peak memory of the server, ${inAndOut}`,
      measured: large.peakBytes / MB,
      unit: "MB",
      hold: { atMost: 300 },
    },
    {
      name: "memory_growth",
      title: `The same ÷ peak with ${inMegabytes(small.inputBytes)} in and out`,
      measured: large.peakBytes / MB,
      unit: "MB",
      floor: small.peakBytes / MB,
      hold: { atMost: 1.25 },
    },
    {
      name: "poll_during_large_batch",
      title: "GET /v1/batches/{id} from upload to download, p99",
      measured: percentile(large.latenciesMs, 0.99),
      unit: "ms",
      hold: { atMost: 50 },
    },
    {
      name: "validating",
      title: `Validation of those ${inMegabytes(large.inputBytes)}, created to in_progress`,
      measured: large.inputBytes / MB / (large.validatingMs / 1000),
      unit: "MB/s",
    },
  ];
}
