/**
 * Measures how many lines are sent a second time after `kill -9` in the middle of a batch, beyond the unavoidable ones.
 */
import { type Figure, median } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const ANSWER_DELAY_MS = 20;
const CONCURRENCY = 64;
/** The time that an answer may wait for the disk. */
const UNFLUSHED_SECONDS = 0.1;
/** The share of the batch that is complete at the kill. */
const KILLED_AT = 0.5;

interface Resent {
  readonly measured: number;
  /** The unavoidable lines: those in flight, and those answered in the last moment. */
  readonly floor: number;
}

export async function measureResent({ resentLineCount, resentRounds }: Sizes): Promise<Figure[]> {
  const rounds: Resent[] = [];
  while (rounds.length < resentRounds) rounds.push(await measureRound(resentLineCount));
  return [
    {
      name: "resent",
      title: "Lines sent again after kill -9 ÷ in flight + answered in 100 ms",
      measured: median(rounds.map(({ measured }) => measured)),
      floor: median(rounds.map(({ floor }) => floor)),
      unit: "requests",
      hold: { atMost: 1 },
    },
  ];
}

async function measureRound(lineCount: number): Promise<Resent> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const upstream = await stage.upstream({ delayMs: ANSWER_DELAY_MS });
  const options = { upstreamUrl: upstream.url, maxConcurrency: CONCURRENCY };
  const server = await stage.server(options);
  const { id } = await server.api.createBatch(await server.api.upload(inputPath));
  const linesPerSecond = await upstream.receives(KILLED_AT * lineCount);
  await server.kill();
  const again = await stage.server(options);
  using pulse = new Pulse(again.api, id);
  expectAllAnswered(await pulse.reached("completed"), lineCount);
  const { received } = await upstream.stats();
  return {
    measured: received - lineCount,
    floor: CONCURRENCY + linesPerSecond * UNFLUSHED_SECONDS,
  };
}
