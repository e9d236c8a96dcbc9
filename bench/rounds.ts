/**
 * Runs whole batches on one server from its start. The first one is cold, the others are warm. Each is measured from
 * created to completed, between two runs of a bare loop of requests on the same upstream.
 */
import { setTimeout as delay } from "node:timers/promises";
import { writeInput } from "./inputs.ts";
import { peakResidentBytes, residentBytes } from "./memory.ts";
import { expectAllAnswered, Pulse } from "./pulse.ts";
import { Stage } from "./stage.ts";

const UNDICI_LOOP = new URL("./undici-loop.ts", import.meta.url);
/** The time after which a server has completed its start. */
const IDLE_AFTER_MS = 3_000;

export interface Load {
  readonly lineCount: number;
  readonly concurrency: number;
  /** The time that the upstream takes for an answer. */
  readonly delayMs: number;
  readonly warmRounds: number;
}

/** The results of one batch, in lines a second. */
export interface Round {
  readonly measured: number;
  readonly floor: number;
}

export interface Rounds {
  readonly cold: Round;
  readonly warm: readonly Round[];
  /** The latencies of the requests for the batch meanwhile. */
  readonly latenciesMs: readonly number[];
  /** The resident memory before the first batch. */
  readonly idleBytes: number;
  /** The peak of the resident memory. */
  readonly peakBytes: number;
}

export async function measureRounds(load: Load): Promise<Rounds> {
  const { lineCount, concurrency, delayMs, warmRounds } = load;
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const upstream = await stage.upstream({ delayMs });
  const loopArgs = [upstream.url, inputPath, String(concurrency)];
  const measureFloor = () => stage.children.measure<number>(UNDICI_LOOP, loopArgs);
  const server = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: concurrency });
  await delay(IDLE_AFTER_MS);
  const idleBytes = residentBytes(server.pid);
  const fileId = await server.api.upload(inputPath);
  const latenciesMs: number[] = [];
  let floorBefore = await measureFloor();
  const measureRound = async (): Promise<Round> => {
    const startedAtMs = performance.now();
    const { id } = await server.api.createBatch(fileId);
    using pulse = new Pulse(server.api, id);
    const batch = await pulse.reached("completed");
    const tookMs = performance.now() - startedAtMs;
    expectAllAnswered(batch, lineCount);
    latenciesMs.push(...pulse.latenciesMs);
    const floorAfter = await measureFloor();
    const floor = (floorBefore + floorAfter) / 2;
    floorBefore = floorAfter;
    return { measured: (lineCount / tookMs) * 1000, floor };
  };
  const cold = await measureRound();
  const warm: Round[] = [];
  while (warm.length < warmRounds) warm.push(await measureRound());
  return { cold, warm, latenciesMs, idleBytes, peakBytes: peakResidentBytes(server.pid) };
}

/** Returns the round with the median ratio, because a single round is as noisy as the machine. */
export function medianRound(rounds: readonly Round[]): Round {
  const sorted = rounds.toSorted((a, b) => a.measured / a.floor - b.measured / b.floor);
  const middle = sorted[Math.floor((sorted.length - 1) / 2)];
  if (middle === undefined) throw new Error("no round was measured");
  return middle;
}
