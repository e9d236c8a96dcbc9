/** Measures the time from `POST /v1/batches` to the first line of a small batch at the model. */
import { type Figure, median } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const LINE_COUNT = 10;

export async function measureFirstRequest({ firstRequestCount }: Sizes): Promise<Figure[]> {
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount: LINE_COUNT });
  const upstream = await stage.upstream();
  const { api } = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: 64 });
  const fileId = await api.upload(inputPath);
  const delaysMs: number[] = [];
  for (let i = 0; i < firstRequestCount; i++) {
    await upstream.forget();
    const createdAtMs = Number(process.hrtime.bigint()) / 1e6;
    const { id } = await api.createBatch(fileId);
    using pulse = new Pulse(api, id);
    await pulse.reached("completed");
    const { firstRequestAtMs } = await upstream.stats();
    delaysMs.push((firstRequestAtMs ?? Number.NaN) - createdAtMs);
  }
  return [
    {
      name: "first_request",
      title: "POST /v1/batches → first upstream request, median",
      measured: median(delaysMs),
      unit: "ms",
      hold: { atMost: 100 },
    },
  ];
}
