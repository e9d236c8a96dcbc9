/**
 * How busy the server keeps a model server of which it knows nothing: the work that was done ÷ what could have
 * been done from the first request to the last answer, the search for the right number in flight included.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { ModelServerStats } from "../../test/support/model-server.ts";
import { meanPresent, type StationTotals } from "../../test/support/station.ts";
import type { Figure } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { type ModelServerClient, Stage } from "../stage.ts";

const CAPACITY = 48;
const SERVICE_MS = 150;
const JITTER = 0.2;
/** Far more than the model server can do with. */
const MAX_CONCURRENCY = 512;
const SAMPLE_EVERY_MS = 250;

interface Run {
  readonly first: StationTotals;
  readonly last: StationTotals;
  readonly samples: readonly ModelServerStats[];
  readonly repeated: number;
}

export async function measureDispatch({ dispatchSeconds }: Sizes): Promise<Figure[]> {
  const steady = await run(dispatchSeconds, [CAPACITY]);
  const halved = await run(dispatchSeconds, [CAPACITY, CAPACITY / 2, CAPACITY]);
  return [
    utilisationOf(steady, {
      name: "dispatch_steady",
      title: `Servers kept busy, of ${CAPACITY} nobody told it of`,
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
async function run(seconds: number, capacities: readonly number[]): Promise<Run> {
  await using stage = await Stage.open();
  const phaseMs = (seconds * 1000) / capacities.length;
  const serverMs = capacities.reduce((sum, capacity) => sum + capacity * phaseMs, 0);
  const lineCount = Math.round(serverMs / SERVICE_MS);
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const work = { serviceMs: SERVICE_MS, jitter: JITTER };
  const modelServer = await stage.modelServer({ capacities, phaseMs, ...work });
  const { api } = await stage.server({
    upstreamUrl: modelServer.url,
    maxConcurrency: MAX_CONCURRENCY,
  });
  await using sampler = new Sampler(modelServer);
  const { id } = await api.createBatch(await api.upload(inputPath));
  using pulse = new Pulse(api, id);
  expectAllAnswered(await pulse.reached("completed"), lineCount);
  const { arrived, atFirstArrival, atLastAnswer } = await modelServer.stats();
  if (atFirstArrival === null || atLastAnswer === null) throw new Error("nothing was served");
  return {
    first: atFirstArrival,
    last: atLastAnswer,
    samples: sampler.samples,
    repeated: arrived - lineCount,
  };
}

/** Looks at the books of the model server again and again. */
class Sampler implements AsyncDisposable {
  readonly samples: ModelServerStats[] = [];
  readonly #modelServer: ModelServerClient;
  readonly #looking: Promise<void>;
  #isOver = false;

  constructor(modelServer: ModelServerClient) {
    this.#modelServer = modelServer;
    this.#looking = this.#look();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await this.#looking;
  }

  async #look(): Promise<void> {
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
