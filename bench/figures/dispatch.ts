/**
 * Measures how busy the server keeps a model server of unknown capacity. The figure is the work done ÷ the work
 * possible, from the first request to the last answer. The search for the right number in flight is included.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { ModelServerStats } from "../../test/support/model-server.ts";
import { meanPresent, type StationTotals } from "../../test/support/station.ts";
import type { Figure } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import type { ModelServerArgs } from "../model-server.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { type ModelServerClient, Stage } from "../stage.ts";

const CAPACITY = 48;
const SERVICE_MS = 150;
const JITTER = 0.2;
/** The configured limit, far above the capacity of the model server. */
const MAX_CONCURRENCY = 512;
const SAMPLE_EVERY_MS = 250;

interface Run {
  readonly first: StationTotals;
  readonly last: StationTotals;
  readonly samples: readonly ModelServerStats[];
  readonly repeated: number;
  readonly refused: number;
}

interface Row {
  /** The name for programs. */
  readonly name: string;
  readonly capacity: number;
  readonly serviceMs: number;
  readonly lineCount: number;
  /** The pause that a refusal asks for; no request is refused when it is left out. */
  readonly pauseMs?: number;
}

/** The model servers, which have a capacity. They queue further requests, or refuse them and ask for a pause. */
const ROWS: readonly Row[] = [
  { name: "refusing_pause_40", capacity: 40, serviceMs: 100, lineCount: 6_000, pauseMs: 1_000 },
  // The row has fewer lines than the others, because it takes a minute. So its start counts for more.
  { name: "refusing_pause_8", capacity: 8, serviceMs: 300, lineCount: 1_600, pauseMs: 1_000 },
  { name: "refusing_40", capacity: 40, serviceMs: 100, lineCount: 6_000, pauseMs: 0 },
  { name: "refusing_200", capacity: 200, serviceMs: 200, lineCount: 20_000, pauseMs: 0 },
  { name: "queueing_40", capacity: 40, serviceMs: 100, lineCount: 6_000 },
];

export async function measureDispatch({
  dispatchSeconds,
  dispatchShare,
}: Sizes): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const row of ROWS) figures.push(...(await measureRow(row, dispatchShare)));
  return [...figures, ...(await measureChanges(dispatchSeconds))];
}

async function measureRow(row: Row, share: number): Promise<Figure[]> {
  const { name, capacity, serviceMs, pauseMs } = row;
  const lineCount = Math.round(row.lineCount * share);
  const refusing = pauseMs === undefined ? {} : { refusalPauseMs: pauseMs };
  const server = { capacities: [capacity], phaseMs: 0, serviceMs, jitter: 0, ...refusing };
  const done = await run(lineCount, server);
  const busy = utilisationOf(done, {
    name: `dispatch_${name}`,
    title: `Kept busy: ${titleOf(row)}`,
    hold: { atLeast: 0.9 },
  });
  if (pauseMs === undefined) return [busy];
  const refused: Figure = {
    name: `dispatch_${name}_refused`,
    title: "  Refusals ÷ lines",
    measured: done.refused,
    unit: "requests",
    floor: lineCount,
    hold: { atMost: 0.01 },
  };
  return [busy, refused];
}

function titleOf({ capacity, serviceMs, pauseMs }: Row): string {
  const server = `${capacity} at a time, ${serviceMs} ms`;
  if (pauseMs === undefined) return `${server}, queues`;
  return `${server}, 429${pauseMs === 0 ? "" : ` with Retry-After: ${pauseMs / 1000}`}`;
}

async function measureChanges(seconds: number): Promise<Figure[]> {
  const steady = await runFor(seconds, [CAPACITY]);
  const halved = await runFor(seconds, [CAPACITY, CAPACITY / 2, CAPACITY]);
  return [
    utilisationOf(steady, {
      name: "dispatch_steady",
      title: `Servers kept busy, of ${CAPACITY} that it was not told of`,
      hold: { atLeast: 0.9 },
    }),
    {
      name: "dispatch_settled",
      title: "Requests there at once, second half, ÷ those servers",
      measured: secondHalfPresent(steady),
      unit: "requests",
      floor: CAPACITY,
      hold: { atMost: 1.2 },
    },
    utilisationOf(halved, {
      name: "dispatch_halved",
      title: "Servers kept busy when half of them go and come back",
      hold: { atLeast: 0.8 },
    }),
    {
      name: "dispatch_repeated",
      title: "Requests sent more than once meanwhile",
      measured: steady.repeated + halved.repeated,
      unit: "requests",
      hold: { atMost: 0 },
    },
  ];
}

/** `capacities` follow each other in equal parts of the time. */
function runFor(seconds: number, capacities: readonly number[]): Promise<Run> {
  const phaseMs = (seconds * 1000) / capacities.length;
  const serverMs = capacities.reduce((sum, capacity) => sum + capacity * phaseMs, 0);
  const lineCount = Math.round(serverMs / SERVICE_MS);
  return run(lineCount, { capacities, phaseMs, serviceMs: SERVICE_MS, jitter: JITTER });
}

/** Runs one batch, and measures from the first request to the last answer. */
async function run(lineCount: number, server: ModelServerArgs): Promise<Run> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const modelServer = await stage.modelServer(server);
  const { api } = await stage.server({
    upstreamUrl: modelServer.url,
    maxConcurrency: MAX_CONCURRENCY,
  });
  await using sampler = new Sampler(modelServer);
  const { id } = await api.createBatch(await api.upload(inputPath));
  using pulse = new Pulse(api, id);
  expectAllAnswered(await pulse.reached("completed"), lineCount);
  const { arrived, fates, atFirstArrival, atLastAnswer } = await modelServer.stats();
  if (atFirstArrival === null || atLastAnswer === null) throw new Error("nothing was served");
  return {
    first: atFirstArrival,
    last: atLastAnswer,
    samples: sampler.samples,
    repeated: arrived - lineCount,
    refused: fates.overloaded ?? 0,
  };
}

/** Reads the statistics of the model server at intervals. */
class Sampler implements AsyncDisposable {
  readonly samples: ModelServerStats[] = [];
  readonly #modelServer: ModelServerClient;
  readonly #sampling: Promise<void>;
  #isOver = false;

  constructor(modelServer: ModelServerClient) {
    this.#modelServer = modelServer;
    this.#sampling = this.#sample();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await this.#sampling;
  }

  async #sample(): Promise<void> {
    while (!this.#isOver) {
      this.samples.push(await this.#modelServer.stats());
      await delay(SAMPLE_EVERY_MS);
    }
  }
}

function utilisationOf(
  { first, last }: Run,
  { name, title, hold }: Pick<Figure, "name" | "title"> & { hold: Figure["hold"] & object },
): Figure {
  const tookMs = last.atMs - first.atMs;
  return {
    name,
    title,
    measured: (last.busyMs - first.busyMs) / tookMs,
    unit: "servers",
    floor: (last.capacityMs - first.capacityMs) / tookMs,
    hold,
  };
}

function secondHalfPresent({ first, last, samples }: Run): number {
  const half = samples.find(({ atMs }) => atMs >= (first.atMs + last.atMs) / 2);
  return half === undefined ? Number.NaN : meanPresent(half, last);
}
