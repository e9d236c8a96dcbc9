/**
 * Measures fleets on PostgreSQL and S3: how the throughput grows with the workers, and what a thousand lines cost in
 * statements and requests to the bucket. The latency of the upstream is the limit and never the processor, because the
 * machine of the bench has far fewer cores than a fleet. Each worker has {@link IN_FLIGHT} requests in flight.
 */
import { setTimeout as delay } from "node:timers/promises";
import { Scrape } from "../../test/support/prometheus.ts";
import { type Installation, type Places, startPlaces } from "../databases.ts";
import type { Figure } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { processorSeconds } from "../processors.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { type Server, Stage } from "../stage.ts";

const WORKERS = [1, 2, 4] as const;
const LATENCY_MS = 100;
const IN_FLIGHT = 48;
/** A client asks from time to time. Each time is a statement or two. */
const POLL_EVERY_MS = 2_000;
/** The time in which workers that have started divide the upstream among them. */
const DIVIDED_AFTER_MS = 10_000;

interface Run {
  readonly workerCount: number;
  readonly linesPerSecond: number;
  /** The count is for 1,000 lines, from the upload of the input to the completed batch. */
  readonly statements: number;
  readonly s3Requests: number;
  /** The processors that all processes of the bench used together while the batch ran. */
  readonly processors: number;
}

export async function measureFleet({ fleetLinesPerWorker }: Sizes): Promise<Figure[]> {
  await using places = await startPlaces();
  if (places === null) return [];
  const runs: Run[] = [];
  for (const workerCount of WORKERS) {
    runs.push(
      await measureRun(places, { workerCount, lineCount: workerCount * fleetLinesPerWorker }),
    );
  }
  return figuresOf(runs);
}

function figuresOf(runs: readonly Run[]): Figure[] {
  const [alone] = runs;
  if (alone === undefined) return [];
  return runs.flatMap((run): Figure[] => {
    const { workerCount, linesPerSecond, statements, s3Requests, processors } = run;
    const name = `fleet_${workerCount}`;
    const workers = workerCount === 1 ? "1 worker" : `${workerCount} workers`;
    const floor = alone.linesPerSecond * workerCount;
    return [
      {
        name,
        title: `${workers}, PostgreSQL and S3, ${IN_FLIGHT} in flight each, ${LATENCY_MS} ms`,
        measured: linesPerSecond,
        unit: "lines/s",
        ...(workerCount > 1 && { floor, hold: { atLeast: 0.9 } }),
      },
      {
        name: `${name}_statements`,
        title: "  Database statements for 1,000 lines",
        measured: statements,
        unit: "requests",
        hold: { atMost: 40 },
      },
      {
        name: `${name}_s3_requests`,
        title: "  S3 requests for 1,000 lines",
        measured: s3Requests,
        unit: "requests",
        hold: { atMost: 10 },
      },
      {
        name: `${name}_processors`,
        title: "  Processors in use, by all processes together",
        measured: processors,
        unit: "processors",
      },
    ];
  });
}

interface FleetSize {
  readonly workerCount: number;
  readonly lineCount: number;
}

async function measureRun(places: Places, { workerCount, lineCount }: FleetSize): Promise<Run> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const installation = await places.newInstallation();
  const servers = await startFleet(stage, installation, workerCount);
  const [api] = servers;
  await delay(DIVIDED_AFTER_MS);
  const before = await countAll(installation, servers);
  const fileId = await api.api.upload(inputPath);
  const secondsBefore = processorSeconds();
  const startedAtMs = performance.now();
  const { id } = await api.api.createBatch(fileId);
  using pulse = new Pulse(api.api, id, POLL_EVERY_MS);
  expectAllAnswered(await pulse.reached("completed"), lineCount);
  const tookMs = performance.now() - startedAtMs;
  const after = await countAll(installation, servers);
  const processors = (processorSeconds() - secondsBefore) / (tookMs / 1000);
  await installation.close();
  return {
    workerCount,
    linesPerSecond: (lineCount / tookMs) * 1000,
    statements: ((after.statements - before.statements) / lineCount) * 1000,
    s3Requests: ((after.s3Requests - before.s3Requests) / lineCount) * 1000,
    processors,
  };
}

/** The first server serves the API, the others are workers. */
async function startFleet(
  stage: Stage,
  { config }: Installation,
  workerCount: number,
): Promise<[Server, ...Server[]]> {
  const upstream = await stage.upstream({ delayMs: LATENCY_MS });
  // The upstream's limit is for all workers together.
  const common = { upstreamUrl: upstream.url, maxConcurrency: workerCount * IN_FLIGHT, config };
  const api = await stage.server({
    ...common,
    name: "api",
    role: "api",
    config: { ...config, upstreams: [] },
  });
  const workers: Server[] = [];
  for (let n = 0; n < workerCount; n++) {
    workers.push(await stage.server({ ...common, name: `worker-${n}`, role: "worker" }));
  }
  return [api, ...workers];
}

async function countAll(installation: Installation, servers: readonly Server[]) {
  const statements = await installation.statementCount();
  let s3Requests = 0;
  for (const { url } of servers) {
    const text = await (await fetch(`${url}/metrics`)).text();
    s3Requests += new Scrape(text).value("batchd_s3_requests_total");
  }
  return { statements, s3Requests };
}
