/**
 * The command line of `test/support/model-server.ts`, so that the bench can run it as a process of its own. Its capacity may
 * change: one value after the other, each for the same time, counted from the first answer; the last one stays.
 */
import { setTimeout as delay } from "node:timers/promises";
import { parseArgs } from "node:util";
import { startModelServer } from "../test/support/model-server.ts";

export interface ModelServerArgs {
  readonly capacities: readonly number[];
  readonly phaseMs: number;
  readonly serviceMs: number;
  /** Up and down, as a share of the service time. */
  readonly jitter: number;
  /** Beyond its capacity it refuses, and asks for a pause of so long (0: for none). Left out: requests wait. */
  readonly refusalPauseMs?: number;
}

export const modelServerArgs = (options: ModelServerArgs): string[] => [
  ...["--capacities", options.capacities.join(",")],
  ...["--phase-ms", String(options.phaseMs)],
  ...["--service-ms", String(options.serviceMs)],
  ...["--jitter", String(options.jitter)],
  ...(options.refusalPauseMs === undefined
    ? []
    : ["--refusal-pause-ms", String(options.refusalPauseMs)]),
];

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      capacities: { type: "string", default: "1" },
      "phase-ms": { type: "string", default: "0" },
      "service-ms": { type: "string", default: "0" },
      jitter: { type: "string", default: "0" },
      "refusal-pause-ms": { type: "string" },
    },
  });
  const [capacity = 1, ...later] = values.capacities.split(",").map(Number);
  const refusalPauseMs = values["refusal-pause-ms"];
  const server = await startModelServer({
    capacity,
    serviceMs: Number(values["service-ms"]),
    jitter: Number(values.jitter),
    ...(refusalPauseMs === undefined
      ? {}
      : { queueLimit: 0, overloadStatus: 429, overloadPauseMs: Number(refusalPauseMs) }),
  });
  process.stdout.write(`listening on ${new URL(server.url).origin}\n`);
  await server.whenServed(1);
  for (const next of later) {
    await delay(Number(values["phase-ms"]));
    server.setCapacity(next);
  }
}
