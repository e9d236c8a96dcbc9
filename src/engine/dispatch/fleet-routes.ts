/**
 * The route of a model over all replicas: each has targets, slots and a condition of its own. Where they differ, a batch
 * goes on as long as one of them takes its lines, and the throughputs add up.
 */
import type { ReplicaRoute, Route } from "../../upstream/upstream.ts";
import type { Throughput } from "./throughput-estimator.ts";

/** The throughput, pauses and hours of a route, as far as they are known. */
export interface RouteOutlook {
  readonly key: string;
  readonly throughput: Throughput | null;
  readonly opensAtMs: number;
  /** Knows the hours at which it takes lines. */
  readonly route: Pick<Route, "endOfWork">;
}

/** The measured throughput of a route at one replica. */
export interface RouteThroughput {
  readonly key: string;
  readonly throughput: Throughput | null;
  /** Whether the replica has lines for the route at hand. */
  readonly isBusy: boolean;
}

/** The route of a model at one replica. */
export interface FleetRoute extends ReplicaRoute, Omit<RouteThroughput, "key"> {
  /** Whether the replica can keep answers at the moment. */
  readonly canWrite: boolean;
}

/** Returns null when no replica serves the model. */
export function outlookOf(routes: readonly FleetRoute[], nowMs: number): RouteOutlook | null {
  if (routes.length === 0) return null;
  const keys = [...new Set(routes.map(({ key }) => key))].sort();
  return {
    key: keys.join(";"),
    throughput: throughputOf(routes),
    opensAtMs: nowMs + Math.max(0, Math.min(...routes.map(({ opensInMs }) => opensInMs))),
    route: {
      endOfWork: (startAtMs, workMs) =>
        Math.min(...routes.map((route) => route.endOfWork(startAtMs, workMs))),
    },
  };
}

/**
 * Adds up the throughputs of the replicas at work. The measurement of a replica without lines is of another time: the
 * others may have its slots now. It counts only while no replica has lines.
 */
function throughputOf(routes: readonly FleetRoute[]): Throughput | null {
  const busy = routes.filter(({ isBusy }) => isBusy);
  const known = (busy.length > 0 ? busy : routes)
    .map(({ throughput }) => throughput)
    .filter((throughput) => throughput !== null);
  if (known.length === 0) return null;
  return {
    linesPerSecond: known.reduce((sum, each) => sum + each.linesPerSecond, 0),
    isLowerBound: known.some(({ isLowerBound }) => isLowerBound),
  };
}
