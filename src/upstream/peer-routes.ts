/**
 * The routes of another replica, as far as its report describes them: which models it serves, and whether they take
 * lines now. Nothing can be sent through them.
 */

import { worstOf } from "../batch/forecast.ts";
import { Schedule } from "./capacity/schedule.ts";
import type { RequestKind, Unavailability } from "./request.ts";
import { ANY_MODEL, Router } from "./router.ts";
import type { TargetReport } from "./target-report.ts";
import type { ReplicaRoute, UpstreamModel } from "./upstream.ts";

/** A report has no number for "never". */
const NEVER_MS = Number.POSITIVE_INFINITY;

export class PeerUpstreams {
  readonly #router: Router;
  readonly #targets: ReadonlyMap<string, PeerTarget>;

  constructor(targets: readonly TargetReport[]) {
    this.#router = new Router(targets);
    this.#targets = new Map(targets.map((target) => [target.name, new PeerTarget(target)]));
  }

  /** The models that it serves, as far as their names are known. */
  get models(): UpstreamModel[] {
    return [...this.#targets.values()].flatMap(({ name, modelNames }) =>
      modelNames.map((id) => ({ id, ownedBy: name })),
    );
  }

  /** Returns null when the replica does not serve the model. */
  findRoute(model: string): ReplicaRoute | null {
    const plan = this.#router.find(model);
    if (plan === null) return null;
    const targets = plan.targets
      .map((name) => this.#targets.get(name))
      .filter((target) => target !== undefined);
    return {
      key: plan.key,
      opensInMs: Math.min(...targets.map(({ opensInMs }) => opensInMs)),
      unavailabilityFor: (kind) => worstOf(targets.map((each) => each.unavailabilityFor(kind))),
      endOfWork: (startAtMs, workMs) =>
        Math.min(...targets.map((each) => each.endOfWork(startAtMs, workMs))),
    };
  }
}

class PeerTarget {
  readonly #report: TargetReport;
  readonly #schedule: Schedule | null;

  constructor(report: TargetReport) {
    this.#report = report;
    const { schedule, maxConcurrency } = report;
    this.#schedule = schedule === null ? null : new Schedule(schedule, maxConcurrency);
  }

  get name(): string {
    return this.#report.name;
  }

  get modelNames(): string[] {
    const { models, listed } = this.#report;
    return [...models.filter((model) => model !== ANY_MODEL), ...listed];
  }

  get opensInMs(): number {
    return this.#report.opensInMs ?? NEVER_MS;
  }

  unavailabilityFor({
    project,
    model,
  }: Pick<RequestKind, "project" | "model">): Unavailability | null {
    const { held, unavailability } = this.#report;
    const ofKind = held.find((each) => each.project === project && each.model === model);
    return ofKind?.unavailability ?? unavailability;
  }

  endOfWork(startAtMs: number, workMs: number): number {
    return this.#schedule?.endOfWork(startAtMs, workMs) ?? startAtMs + workMs;
  }
}
