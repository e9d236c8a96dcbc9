/**
 * When every open batch will be done, if nothing else comes and everything goes on as it goes now.
 *
 * What the scheduler does line by line is taken for the ideal that it follows (`fair-share.ts`): a route's throughput
 * is divided equally between the projects with lines for it, and in each project between its batches by weight. In
 * that ideal a batch ends when its project has had so much service that each unit of weight got what this batch
 * needs per unit; and all projects that still have work have had the same service at any moment. So two sorted lists
 * are enough to know all ends exactly.
 */
import type { BatchId } from "../batch/batch.ts";
import type { Forecast, Waiting } from "../batch/forecast.ts";
import type { OpenBatch } from "../store/store.ts";
import type { Route } from "../upstream/upstream.ts";
import { weightOf } from "./fair-share.ts";
import type { Throughput } from "./meter.ts";
import { END_IS_KNOWN, isUnanswered } from "./waiting.ts";

export type OpenForecast = Omit<Forecast, "commonFailure">;

/** Lines of one batch for one route. */
export interface Demand {
  readonly batchId: BatchId;
  readonly project: string;
  readonly weight: number;
  readonly lineCount: number;
}

/** What is known of a route. */
export interface RouteOutlook {
  readonly key: string;
  readonly throughput: Throughput | null;
  readonly opensAtMs: number;
  /** Knows the hours at which it takes lines. */
  readonly route: Pick<Route, "endOfWork">;
}

/** Part of the time to go by which an estimate may be wrong before a deadline is in danger. */
const SAFETY_MARGIN = 0.1;

/** How many lines the route has served, in all, when each batch has its last one. */
export function linesUntilDone(demands: readonly Demand[]): Map<BatchId, number> {
  const projects = Map.groupBy(demands, ({ project }) => project);
  const totals = [...projects.values()].map(sumOf).sort((a, b) => a - b);
  const served = serviceOfAll(totals);
  const done = new Map<BatchId, number>();
  for (const batches of projects.values()) {
    for (const [batchId, service] of serviceUntilDone(batches)) {
      // A batch may ask for several models of one route.
      done.set(batchId, Math.max(done.get(batchId) ?? 0, served(service)));
    }
  }
  return done;
}

const sumOf = (demands: readonly Demand[]) =>
  demands.reduce((sum, { lineCount }) => sum + lineCount, 0);

/** How many lines its project has had when each batch has its last one. */
function serviceUntilDone(batches: readonly Demand[]): [BatchId, number][] {
  const needOf = ({ lineCount, weight }: Demand) => lineCount / weight;
  const byNeed = batches.toSorted((a, b) => needOf(a) - needOf(b));
  let weightLeft = batches.reduce((sum, { weight }) => sum + weight, 0);
  let doneLines = 0;
  return byNeed.map((demand) => {
    const service = doneLines + weightLeft * needOf(demand);
    doneLines += demand.lineCount;
    weightLeft -= demand.weight;
    return [demand.batchId, service];
  });
}

/** From what one project has had, as long as it has work, to what all have had; `totals` are sorted. */
function serviceOfAll(totals: readonly number[]): (service: number) => number {
  const doneBefore = [0];
  for (const total of totals) doneBefore.push((doneBefore.at(-1) ?? 0) + total);
  return (service) => {
    let low = 0;
    let high = totals.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((totals[middle] ?? 0) < service) low = middle + 1;
      else high = middle;
    }
    return (doneBefore[low] ?? 0) + (totals.length - low) * service;
  };
}

export interface ForecastInput {
  readonly batches: readonly OpenBatch[];
  /** Null when no target serves the model. */
  readonly outlookOf: (model: string) => RouteOutlook | null;
  readonly nowMs: number;
  readonly waiting: ReadonlyMap<BatchId, Waiting>;
}

export function forecastAll(input: ForecastInput): Map<BatchId, OpenForecast> {
  const routes = groupByRoute(input);
  const positions = queuePositions(input.batches);
  return new Map(
    input.batches.map((batch) => {
      const prospects = batch.work.map(({ route }) => prospectOf(batch, routes.get(route), input));
      const etas = prospects.map(({ etaAtMs }) => etaAtMs).filter((etaAtMs) => etaAtMs !== null);
      const waiting = input.waiting.get(batch.batchId) ?? null;
      const hasEnd = waiting === null || END_IS_KNOWN.has(waiting.reason);
      const isKnown = batch.isValidated && hasEnd && etas.length === prospects.length;
      const forecast = {
        etaAtMs: isKnown ? Math.max(input.nowMs, ...etas) : null,
        isAtRisk: isUnanswered(waiting) || prospects.some(({ isAtRisk }) => isAtRisk),
        queuePosition: positions.get(batch.batchId) ?? null,
        waiting,
      };
      return [batch.batchId, forecast];
    }),
  );
}

/** What is to be done at a route, and how far along it is when each batch is done. */
interface RoutePlan {
  readonly outlook: RouteOutlook;
  readonly demands: Demand[];
  linesUntilDone: ReadonlyMap<BatchId, number>;
}

/** By model; models of one route share its plan. Left out are those that no target serves. */
function groupByRoute({ batches, outlookOf }: ForecastInput): Map<string, RoutePlan> {
  const byModel = new Map<string, RoutePlan>();
  const byKey = new Map<string, RoutePlan>();
  for (const { batchId, project, priority, remainingLineCount, work } of batches) {
    const openLineCount = work.reduce((sum, { lineCount }) => sum + lineCount, 0);
    for (const { route, lineCount } of work) {
      const plan = byModel.get(route) ?? planFor(outlookOf(route), byKey);
      if (plan === null) continue;
      byModel.set(route, plan);
      // Some lines of open chunks have their answers: how many is known for the batch as a whole.
      const toGo = (lineCount * remainingLineCount) / openLineCount;
      plan.demands.push({ batchId, project, weight: weightOf(priority), lineCount: toGo });
    }
  }
  for (const plan of byKey.values()) plan.linesUntilDone = linesUntilDone(plan.demands);
  return byModel;
}

function planFor(outlook: RouteOutlook | null, byKey: Map<string, RoutePlan>): RoutePlan | null {
  if (outlook === null) return null;
  const known = byKey.get(outlook.key);
  if (known !== undefined) return known;
  const plan = { outlook, demands: [], linesUntilDone: new Map() };
  byKey.set(outlook.key, plan);
  return plan;
}

/** How a batch fares at one of its routes. */
function prospectOf(
  { batchId, deadlineAtMs }: OpenBatch,
  plan: RoutePlan | undefined,
  { nowMs }: ForecastInput,
): Pick<Forecast, "etaAtMs" | "isAtRisk"> {
  if (plan === undefined) return { etaAtMs: null, isAtRisk: true };
  const { throughput, opensAtMs, route } = plan.outlook;
  const startAtMs = Math.max(nowMs, opensAtMs);
  if (throughput === null) return { etaAtMs: null, isAtRisk: startAtMs >= deadlineAtMs };
  const lines = plan.linesUntilDone.get(batchId) ?? 0;
  const workMs = (lines / throughput.linesPerSecond) * 1000;
  const etaAtMs = route.endOfWork(startAtMs, workMs);
  const isLate = etaAtMs + workMs * SAFETY_MARGIN > deadlineAtMs;
  const isAtRisk = startAtMs >= deadlineAtMs || (isLate && !throughput.isLowerBound);
  return { etaAtMs, isAtRisk };
}

/** Validated batches come first: they could begin at any moment. */
function queuePositions(batches: readonly OpenBatch[]): Map<BatchId, number> {
  const waiting = batches.filter(({ isSending }) => !isSending);
  waiting.sort(
    (a, b) =>
      Number(b.isValidated) - Number(a.isValidated) ||
      a.deadlineAtMs - b.deadlineAtMs ||
      a.createdAtMs - b.createdAtMs,
  );
  const positions = new Map(batches.map(({ batchId }) => [batchId, 0]));
  for (const [i, { batchId }] of waiting.entries()) positions.set(batchId, i + 1);
  return positions;
}
