/** Measures thousands of slow requests at once, as with a slow model and a large fleet. */
import { type Figure, MB } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { peakResidentBytes } from "../memory.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const ANSWER_DELAY_MS = 2_000;

export async function measureInFlight(sizes: Sizes): Promise<Figure[]> {
  const { inFlightCount, inFlightLineCount } = sizes;
  await using stage = await Stage.open();
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount: inFlightLineCount });
  const upstream = await stage.upstream({ delayMs: ANSWER_DELAY_MS });
  const server = await stage.server({
    upstreamUrl: upstream.url,
    maxConcurrency: inFlightCount,
    // The figure measures what one process can hold, so the limit starts there. `dispatch` measures the search for it.
    upstreamConfig: { min_concurrency: inFlightCount },
  });
  const { id } = await server.api.createBatch(await server.api.upload(inputPath));
  using pulse = new Pulse(server.api, id);
  expectAllAnswered(await pulse.reached("completed"), inFlightLineCount);
  const { received, maxInFlight } = await upstream.stats();
  return [
    {
      name: "in_flight",
      title: `In flight at once, of ${inFlightCount.toLocaleString("en")}, as the upstream counts`,
      measured: maxInFlight,
      unit: "requests",
      hold: { atLeast: 0.98 * inFlightCount },
    },
    {
      name: "in_flight_repeated",
      title: "Requests sent more than once meanwhile",
      measured: received - inFlightLineCount,
      unit: "requests",
      hold: { atMost: 0 },
    },
    {
      name: "in_flight_memory",
      title: "Peak memory of the server meanwhile",
      measured: peakResidentBytes(server.pid) / MB,
      unit: "MB",
      hold: { atMost: 600 },
    },
  ];
}
