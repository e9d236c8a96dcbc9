/**
 * The command line of `test/support/model-server.ts`, which the bench runs as a process of its own. The capacity may
 * change. Its values follow one another, each for the same time from the first answer on, and the last one stays.
 */
import { setTimeout as delay } from "node:timers/promises";
import { parseArgs } from "node:util";
import { startModelServer } from "../test/support/model-server.ts";

export interface ModelServerArgs {
  readonly capacities: readonly number[];
  readonly phaseMs: number;
  readonly serviceMs: number;
  /** The variation of the service time up and down, as a share of it. */
  readonly jitter: number;
  /** The pause that a refusal beyond the capacity asks for (0: none). Requests wait instead when it is left out. */
  readonly refusalPauseMs?: number;
}

export const modelServerArgs = (options: ModelServerArgs): string[] => [
  "--capacities",
  options.capacities.join(","),
  "--phase-ms",
  String(options.phaseMs),
  "--service-ms",
  String(options.serviceMs),
  "--jitter",
  String(options.jitter),
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
