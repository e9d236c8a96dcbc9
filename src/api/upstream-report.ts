/**
 * Sums up what the replicas report of their targets (`TargetFigures`), so that an operator sees the upstreams of the whole
 * fleet. A replica reports with each renewal of its part of the limits, so its figures are a few seconds old. They hold no
 * address and no key, as reports are kept in the database.
 */
import type { Unavailability } from "../upstream/request.ts";
import type { RateReport, TargetFigures, TargetReport } from "../upstream/target-report.ts";

/** The targets of one replica. */
export interface ReplicaTargets {
  /** Whether it runs batches. Others send interactive requests alone. */
  readonly isWorker: boolean;
  readonly targets: readonly TargetReport[];
}

export interface UpstreamSum
  extends Omit<TargetFigures, "requestRate" | "tokenRate" | "durations"> {
  readonly name: string;
  readonly models: readonly string[];
  readonly serverCount: number;
  readonly unavailability: Unavailability | null;
  readonly held: TargetReport["held"];
  readonly maxConcurrency: number;
  readonly schedule: TargetReport["schedule"];
  /** The latencies by quantile, as upper bounds; null before the first attempt. */
  readonly latency: { readonly p50: number | null; readonly p95: number | null } | null;
  readonly requestRate: UsedRate | null;
  readonly tokenRate: UsedRate | null;
}

export interface UsedRate {
  readonly limit: number;
  readonly used: number;
}

interface Reported {
  readonly isWorker: boolean;
  readonly target: TargetReport;
}

export function sumUpstreams(replicas: readonly ReplicaTargets[]): UpstreamSum[] {
  const byName = new Map<string, [Reported, ...Reported[]]>();
  for (const { isWorker, targets } of replicas) {
    for (const target of targets) {
      const known = byName.get(target.name);
      if (known === undefined) byName.set(target.name, [{ isWorker, target }]);
      else known.push({ isWorker, target });
    }
  }
  return [...byName.values()].map(sumOf).sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** The replica that answers is the first, and its configuration counts where they differ. */
function sumOf(reported: readonly [Reported, ...Reported[]]): UpstreamSum {
  const [{ target: first }] = reported;
  const targets = reported.map(({ target }) => target);
  const figures = targets.flatMap((target) => target.figures ?? []);
  const sum = (value: (of: TargetFigures) => number) =>
    figures.reduce((all, each) => all + value(each), 0);
  const sumOfAttempts = (kind: keyof TargetFigures["attempts"]) =>
    sum(({ attempts }) => attempts[kind]);
  return {
    name: first.name,
    models: first.models,
    maxConcurrency: first.maxConcurrency,
    schedule: first.schedule,
    serverCount: reported.length,
    unavailability: unavailabilityOf(reported),
    held: heldBy(targets),
    limit: sum(({ limit }) => limit),
    inFlight: {
      batch: sum(({ inFlight }) => inFlight.batch),
      interactive: sum(({ inFlight }) => inFlight.interactive),
    },
    waiting: sum(({ waiting }) => waiting),
    circuit: circuitOf(figures),
    attempts: {
      answered: sumOfAttempts("answered"),
      rateLimited: sumOfAttempts("rateLimited"),
      overloaded: sumOfAttempts("overloaded"),
      failed: sumOfAttempts("failed"),
    },
    latency: latencyOf(figures),
    requestRate: rateOf(figures.map(({ requestRate }) => requestRate)),
    tokenRate: rateOf(figures.map(({ tokenRate }) => tokenRate)),
    hours: first.figures?.hours ?? null,
  };
}

/** The fleet takes lines while one of its workers does. A worker without a part leaves the others theirs. */
function unavailabilityOf(reported: readonly Reported[]): Unavailability | null {
  const workers = reported.some(({ isWorker }) => isWorker)
    ? reported.filter(({ isWorker }) => isWorker)
    : reported;
  const reasons = workers.map(({ target }) => target.unavailability);
  if (reasons.includes(null)) return null;
  return reasons.find((each) => each?.reason !== "no_room") ?? reasons[0] ?? null;
}

function heldBy(targets: readonly TargetReport[]): TargetReport["held"] {
  const held = targets.flatMap((target) => target.held);
  return [...new Map(held.map((each) => [`${each.project}\n${each.model}`, each])).values()];
}

function circuitOf(figures: readonly TargetFigures[]): TargetFigures["circuit"] {
  const states = figures.map(({ circuit }) => circuit);
  return (["open", "half_open"] as const).find((state) => states.includes(state)) ?? "closed";
}

/** A replica that has just started knows no limit of the answers yet, and counts what it sends only once it does. */
function rateOf(rates: readonly (RateReport | null)[]): UsedRate | null {
  const known = rates.filter((rate) => rate !== null);
  const limits = known
    .flatMap(({ configured, learned }) => [configured, learned])
    .filter((limit) => limit !== null);
  if (limits.length === 0) return null;
  return {
    limit: Math.min(...limits),
    used: known.reduce((all, { used }) => all + used, 0),
  };
}

function latencyOf(figures: readonly TargetFigures[]): UpstreamSum["latency"] {
  const counts = new Map<number, number>();
  for (const [upToSeconds, count] of figures.flatMap(({ durations }) => durations)) {
    const bound = upToSeconds ?? Number.POSITIVE_INFINITY;
    counts.set(bound, (counts.get(bound) ?? 0) + count);
  }
  const buckets = [...counts].sort(([a], [b]) => a - b);
  const total = buckets.reduce((all, [, count]) => all + count, 0);
  if (total === 0) return null;
  const quantile = (part: number) => {
    let seen = 0;
    for (const [bound, count] of buckets) {
      seen += count;
      if (seen >= total * part) return Number.isFinite(bound) ? bound : null;
    }
    return null;
  };
  return { p50: quantile(0.5), p95: quantile(0.95) };
}
