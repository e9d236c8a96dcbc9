/** The route of the upstreams, for operators. */
import { type ReplicaTargets, sumUpstreams, type UpstreamSum } from "../api/upstream-report.ts";
import { toSeconds } from "../contract/unix-seconds.ts";
import type { UpstreamObject } from "../contract/upstream.ts";
import { answerJson } from "./json.ts";
import { assertKnownParams } from "./query.ts";
import type { Routes } from "./routes.ts";

export function mountUpstreams(app: Routes, listReplicas: () => readonly ReplicaTargets[]): void {
  app.get("/v1/admin/upstreams", (c) => {
    assertKnownParams(c, []);
    return answerJson(c, { object: "list", data: sumUpstreams(listReplicas()).map(present) });
  });
}

function present(sum: UpstreamSum): UpstreamObject {
  const { unavailability, attempts } = sum;
  return {
    object: "upstream",
    name: sum.name,
    models: [...sum.models],
    servers: sum.serverCount,
    circuit: sum.circuit,
    unavailable: unavailability && presentRefusal(unavailability),
    held: sum.held.map(({ project, model, unavailability: reason }) => ({
      project,
      model,
      ...presentRefusal(reason),
    })),
    max_concurrency: sum.maxConcurrency,
    concurrency_limit: sum.limit,
    in_flight: { ...sum.inFlight },
    waiting: sum.waiting,
    attempts: {
      answered: attempts.answered,
      rate_limited: attempts.rateLimited,
      overloaded: attempts.overloaded,
      failed: attempts.failed,
    },
    latency_seconds: sum.latency,
    requests_per_minute: sum.requestRate,
    tokens_per_minute: sum.tokenRate,
    schedule: presentSchedule(sum),
  };
}

const presentRefusal = ({ reason, upstreamError }: NonNullable<UpstreamSum["unavailability"]>) => ({
  reason,
  message: upstreamError,
});

function presentSchedule({ schedule, hours }: UpstreamSum): UpstreamObject["schedule"] {
  if (schedule === null || hours === null) return null;
  const { next, concurrency } = hours;
  return {
    time_zone: schedule.time_zone,
    windows: schedule.windows.map(({ days = null, from, to }) => ({
      days: days && [...days],
      from,
      to,
    })),
    open: concurrency > 0,
    concurrency,
    next: next && { at: toSeconds(next.atMs), concurrency: next.concurrency },
  };
}
