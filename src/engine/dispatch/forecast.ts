/**
 * Calculates when every open batch will be done, if no other batch comes and the routes stay as fast as they are.
 *
 * The scheduler follows an ideal line by line (`batch/fair-queue.ts`), and the forecast takes it for granted. The
 * throughput of a route is divided by weight between the projects with lines for it, and within a project between its
 * batches. A batch ends when each unit of weight in its project has got as much service as the batch needs
 * per unit. All projects that still have work have had the same service per unit of weight at any moment. Two sorted lists
 * are therefore enough to know all ends exactly.
 *
 * The forecast must never hold up the event loop: tens of thousands of batches are worked through in slices.
 */
import type { BatchId } from "../../batch/batch.ts";
import { firstPlace } from "../../batch/binary-search.ts";
import { weightOf } from "../../batch/fair-queue.ts";
import type { Forecast, Waiting } from "../../batch/forecast.ts";
import { inSlices, sortedInSlices } from "../../resources/time-slice.ts";
import type { OpenBatch } from "../../store/batches.ts";
import type { RouteOutlook } from "./fleet-routes.ts";
import { END_IS_KNOWN, isUnanswered } from "./waiting.ts";

export type OpenForecast = Omit<Forecast, "commonFailure">;

/** The lines of one batch for one route. */
export interface Demand {
  readonly batchId: BatchId;
  readonly project: string;
  readonly projectWeight: number;
  readonly weight: number;
  readonly lineCount: number;
}

/** A deadline is in danger when it would be missed with an estimate wrong by this part of the time to go. */
const SAFETY_MARGIN = 0.1;

/** Returns the number of lines that the route has served in all when each batch has its last one. */
export async function linesUntilDone(demands: readonly Demand[]): Promise<Map<BatchId, number>> {
  const projects = new Map<string, ProjectDemand>();
  for await (const group of inSlices(await sortedInSlices(demands, byNeed))) {
    for (const demand of group) addDemand(demand, projects);
  }
  const served = serviceOfAll(
    await sortedInSlices(
      [...projects.values()],
      (a, b) => a.lineCount / a.weight - b.lineCount / b.weight,
    ),
  );
  const done = new Map<BatchId, number>();
  for (const project of projects.values()) {
    for await (const group of inSlices(project.demands)) {
      for (const demand of group) {
        const until = served(serviceUntilDone(demand, project) / project.weight);
        // A batch may ask for several models of one route.
        done.set(demand.batchId, Math.max(done.get(demand.batchId) ?? 0, until));
      }
    }
  }
  return done;
}

/** The needs of the batches of one project, and the progress of the calculation through them. */
interface ProjectDemand {
  /** The demands, sorted by need for their weight: the smallest first. */
  readonly demands: Demand[];
  readonly weight: number;
  lineCount: number;
  /** The weight of its batches that are not done. */
  weightLeft: number;
  doneLines: number;
}

const needOf = ({ lineCount, weight }: Demand) => lineCount / weight;
const byNeed = (a: Demand, b: Demand) => needOf(a) - needOf(b);

function addDemand(demand: Demand, projects: Map<string, ProjectDemand>): void {
  const { project: name, projectWeight, lineCount, weight } = demand;
  const project = projects.get(name);
  if (project === undefined) {
    projects.set(name, {
      demands: [demand],
      weight: projectWeight,
      lineCount,
      weightLeft: weight,
      doneLines: 0,
    });
    return;
  }
  project.demands.push(demand);
  project.lineCount += lineCount;
  project.weightLeft += weight;
}

/** Returns the lines that the project has had when the batch has its last one. It must be called in order of need. */
function serviceUntilDone(demand: Demand, project: ProjectDemand): number {
  const service = project.doneLines + project.weightLeft * needOf(demand);
  project.doneLines += demand.lineCount;
  project.weightLeft -= demand.weight;
  return service;
}

type ProjectTotal = Pick<ProjectDemand, "lineCount" | "weight">;

/**
 * Returns the function from the service that a project with work has had, per unit of its weight, to the service of all.
 * `totals` must be sorted by their need for their weight.
 */
function serviceOfAll(totals: readonly ProjectTotal[]): (service: number) => number {
  const doneBefore = [0];
  const weightFrom = [totals.reduce((sum, { weight }) => sum + weight, 0)];
  for (const { lineCount, weight } of totals) {
    doneBefore.push((doneBefore.at(-1) ?? 0) + lineCount);
    weightFrom.push((weightFrom.at(-1) ?? 0) - weight);
  }
  const needs = totals.map(({ lineCount, weight }) => lineCount / weight);
  return (service) => {
    const place = firstPlace(needs.length, (at) => (needs[at] ?? 0) >= service);
    return (doneBefore[place] ?? 0) + (weightFrom[place] ?? 0) * service;
  };
}

export interface ForecastInput {
  readonly batches: readonly OpenBatch[];
  /** Returns null when no target serves the model. */
  readonly outlookOf: (model: string) => RouteOutlook | null;
  readonly nowMs: number;
  readonly waiting: ReadonlyMap<BatchId, Waiting>;
  /** Returns the weight of a project in fair sharing. */
  readonly projectWeightOf: (project: string) => number;
}

/** Forecasts all batches. It works in slices, because one client may have 30,000 open batches. */
export async function forecastAll(input: ForecastInput): Promise<Map<BatchId, OpenForecast>> {
  const routes = await groupByRoute(input);
  const positions = await queuePositions(input);
  const forecasts = new Map<BatchId, OpenForecast>();
  for await (const group of inSlices(input.batches)) {
    for (const batch of group) {
      const queuePosition = positions.get(batch.batchId) ?? 0;
      forecasts.set(batch.batchId, { ...expectedOf(batch, routes, input), queuePosition });
    }
  }
  return forecasts;
}

function expectedOf(
  batch: OpenBatch,
  routes: ReadonlyMap<string, RoutePlan>,
  input: ForecastInput,
): Omit<OpenForecast, "queuePosition"> {
  const prospects = batch.work.map(({ model }) => prospectOf(batch, routes.get(model), input));
  const etas = prospects.map(({ etaAtMs }) => etaAtMs).filter((etaAtMs) => etaAtMs !== null);
  const waiting = input.waiting.get(batch.batchId) ?? null;
  const hasEnd = waiting === null || END_IS_KNOWN.has(waiting.reason);
  const isKnown = batch.isValidated && hasEnd && etas.length === prospects.length;
  return {
    etaAtMs: isKnown ? Math.max(input.nowMs, ...etas) : null,
    isAtRisk: isUnanswered(waiting) || prospects.some(({ isAtRisk }) => isAtRisk),
    waiting,
  };
}

/** The work for a route, and its progress when each batch is done. */
interface RoutePlan {
  readonly outlook: RouteOutlook;
  readonly demands: Demand[];
  linesUntilDone: ReadonlyMap<BatchId, number>;
}

/** Groups the work by model. The models of one route share its plan; models that no target serves have none. */
async function groupByRoute(input: ForecastInput): Promise<Map<string, RoutePlan>> {
  const byModel = new Map<string, RoutePlan>();
  const byKey = new Map<string, RoutePlan>();
  const planOf = (model: string) => {
    const plan = byModel.get(model) ?? planFor(input.outlookOf(model), byKey);
    if (plan !== null) byModel.set(model, plan);
    return plan;
  };
  for await (const group of inSlices(input.batches)) {
    for (const batch of group) addDemands(batch, planOf, input.projectWeightOf(batch.project));
  }
  for (const plan of byKey.values()) plan.linesUntilDone = await linesUntilDone(plan.demands);
  return byModel;
}

function addDemands(
  { batchId, project, priority, remainingLineCount, work }: OpenBatch,
  planOf: (model: string) => RoutePlan | null,
  projectWeight: number,
): void {
  const openLineCount = work.reduce((sum, { lineCount }) => sum + lineCount, 0);
  for (const { model, lineCount } of work) {
    // Some lines of open chunks have their answers. Their number is known only for the batch as a whole.
    const toGo = (lineCount * remainingLineCount) / openLineCount;
    const weight = weightOf(priority);
    const demand = { batchId, project, projectWeight, weight, lineCount: toGo };
    planOf(model)?.demands.push(demand);
  }
}

function planFor(outlook: RouteOutlook | null, byKey: Map<string, RoutePlan>): RoutePlan | null {
  if (outlook === null) return null;
  const known = byKey.get(outlook.key);
  if (known !== undefined) return known;
  const plan = { outlook, demands: [], linesUntilDone: new Map() };
  byKey.set(outlook.key, plan);
  return plan;
}

/** Returns the prospect of a batch at one of its routes. */
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

/**
 * Numbers the batches of each project that wait. Validated ones come first, since they could begin at any moment. Projects take
 * turns, so batches of other ones are not before it, and their number is not for this one to know.
 */
async function queuePositions({
  batches,
  waiting,
}: Pick<ForecastInput, "batches" | "waiting">): Promise<Map<BatchId, number>> {
  const queued = await sortedInSlices(
    batches.filter(({ batchId, heldCount }) => heldCount === 0 || waiting.has(batchId)),
    (a, b) =>
      Number(b.isValidated) - Number(a.isValidated) ||
      a.deadlineAtMs - b.deadlineAtMs ||
      a.createdAtMs - b.createdAtMs,
  );
  const positions = new Map<BatchId, number>();
  const counts = new Map<string, number>();
  for await (const group of inSlices(queued)) {
    for (const { batchId, project } of group) {
      const position = (counts.get(project) ?? 0) + 1;
      counts.set(project, position);
      positions.set(batchId, position);
    }
  }
  return positions;
}
