/**
 * Measures whole batches on PostgreSQL and S3 against the same batches on SQLite and a folder. Two servers take turns, on
 * one upstream that answers at once.
 */
import { type Places, startPlaces } from "../databases.ts";
import type { Figure } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import { medianRound, type Round } from "../rounds.ts";
import type { Sizes } from "../sizes.ts";
import { type Server, Stage } from "../stage.ts";

const CONCURRENCY = 256;
const ROUNDS = 4;

export async function measurePlaces({ smallLineCount: lineCount }: Sizes): Promise<Figure[]> {
  await using places = await startPlaces();
  if (places === null) return [];
  const rounds = await measureRounds(places, lineCount);
  const [cold, ...warm] = rounds;
  if (cold === undefined) return [];
  const count = lineCount.toLocaleString("en");
  return [
    {
      name: "postgres_s3_cold",
      title: `First batch, ${count} small lines, PostgreSQL and S3 ÷ SQLite and a folder`,
      ...cold,
      unit: "lines/s",
      hold: { atLeast: 0.7 },
    },
    {
      name: "postgres_s3",
      title: "The next ones, warm",
      ...medianRound(warm),
      unit: "lines/s",
      hold: { atLeast: 0.7 },
    },
  ];
}

async function measureRounds(places: Places, lineCount: number): Promise<Round[]> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const { url: upstreamUrl } = await stage.upstream();
  const installation = await places.newInstallation();
  const common = { upstreamUrl, maxConcurrency: CONCURRENCY };
  const local = await stage.server({ ...common, name: "local" });
  const remote = await stage.server({ ...common, name: "remote", config: installation.config });
  const run = async ({ api }: Server, fileId: string) => {
    const startedAtMs = performance.now();
    const { id } = await api.createBatch(fileId);
    using pulse = new Pulse(api, id);
    expectAllAnswered(await pulse.reached("completed"), lineCount);
    return (lineCount / (performance.now() - startedAtMs)) * 1000;
  };
  const localFileId = await local.api.upload(inputPath);
  const remoteFileId = await remote.api.upload(inputPath);
  const rounds: Round[] = [];
  while (rounds.length < ROUNDS) {
    const floor = await run(local, localFileId);
    rounds.push({ measured: await run(remote, remoteFileId), floor });
  }
  await installation.close();
  return rounds;
}
