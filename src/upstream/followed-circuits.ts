/**
 * Reports the circuits of a target that this replica has opened, and follows those of others (`shared-circuits.ts`).
 */
import type { Outcome } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import type { CircuitBreaker } from "./capacity/breaker.ts";
import type { Capacity } from "./capacity/capacity.ts";
import type { Holds } from "./holds.ts";
import { keyOf } from "./kind-map.ts";
import type { RequestKind } from "./request.ts";
import { failureAs, type OpenedCircuit, partIn, refusedAs, takePart } from "./shared-circuits.ts";
import type { TargetReport } from "./target-report.ts";
import { unavailabilityOf } from "./unavailability.ts";

interface Circuits {
  readonly capacity: Pick<Capacity, "breaker">;
  readonly holds: Holds;
}

/** The report of another replica on the same target. */
export interface OwnedReport {
  readonly owner: string;
  readonly report: TargetReport;
}

interface Self {
  readonly owner: string;
  /** The date by the clock of the store. */
  readonly nowMs: number;
  readonly dates: Dates;
}

/** Turns instants of elapsed time into dates of the store. */
export interface Dates {
  readonly elapsedMs: number;
  readonly dateOf: (elapsedMs: number) => number;
}

export function datesOf(clock: Clock, nowMs: number): Dates {
  const elapsedMs = clock.elapsedMs();
  return { elapsedMs, dateOf: (atMs) => nowMs - (elapsedMs - atMs) };
}

const orNull = (dateMs: number) => (Number.isFinite(dateMs) ? Math.round(dateMs) : null);

export function circuitsOf(
  { capacity: { breaker }, holds }: Circuits,
  { dateOf }: Dates,
): Pick<TargetReport, "circuits" | "goodAtMs" | "servedAtMs" | "servedKinds"> {
  const own = [
    { kind: null, breaker },
    ...holds.breakers.map((each) => ({ kind: each.kind, breaker: each })),
  ];
  return {
    circuits: own.flatMap(({ kind, breaker: { isOwn, openedAtMs, lastFailure, isOwnInDoubt } }) =>
      !isOwn || lastFailure === null
        ? []
        : [
            {
              kind,
              openedAtMs: Math.round(dateOf(openedAtMs)),
              unavailability: unavailabilityOf(lastFailure),
              isInDoubt: isOwnInDoubt,
            },
          ],
    ),
    goodAtMs: orNull(dateOf(breaker.goodAtMs)),
    servedAtMs: orNull(dateOf(holds.latestServedAtMs)),
    servedKinds: holds.servedKinds.map(([key, atMs]) => [key, Math.round(dateOf(atMs))]),
  };
}

const isSame = (a: RequestKind | null, b: RequestKind | null) =>
  a === null || b === null ? a === b : keyOf(a) === keyOf(b);

/** Returns the circuits of this kind that others have opened, and the first of their failures. */
function openedElsewhere(reports: readonly OwnedReport[], kind: RequestKind | null) {
  const opened = reports.flatMap(({ owner, report }) =>
    report.circuits.filter((each) => isSame(each.kind, kind)).map((each) => ({ owner, ...each })),
  );
  return { opened, unavailability: opened[0]?.unavailability ?? null };
}

/** What the others have found of a circuit. */
interface Heard<Failure> {
  readonly reports: readonly OwnedReport[];
  readonly opened: readonly OpenedCircuit[];
  /** The latest date at which the target has served this replica or another one. */
  readonly servedAtMs: number;
  readonly failure: Failure | null;
}

function follow<Failure extends Outcome>(
  breaker: CircuitBreaker<Failure>,
  { reports, opened, servedAtMs, failure }: Heard<Failure>,
  { owner, nowMs, dates }: Self,
): boolean {
  const own = { owner, openedAtMs: dates.dateOf(breaker.openedAtMs) };
  const part = partIn({
    owner,
    nowMs,
    workers: [...reports.map((each) => each.owner), owner],
    opened: breaker.isOwn ? [...opened, own] : opened,
    servedAtMs,
  });
  return takePart(breaker, part, { failure, nowMs: dates.elapsedMs });
}

/** Follows the circuit of the whole target; returns true when it has changed. */
export function followTarget(
  { capacity: { breaker } }: Circuits,
  reports: readonly OwnedReport[],
  self: Self,
): boolean {
  const { opened, unavailability } = openedElsewhere(reports, null);
  breaker.hear(opened.length === 0 ? null : opened.every((each) => each.isInDoubt === true));
  if (opened.length === 0 && !breaker.isOpenForOthers) return false;
  const goodAtMs = reports.map(({ report }) => report.goodAtMs ?? Number.NEGATIVE_INFINITY);
  const servedAtMs = Math.max(self.dates.dateOf(breaker.goodAtMs), ...goodAtMs);
  const failure = unavailability && failureAs(unavailability);
  return follow(breaker, { reports, opened, servedAtMs, failure }, self);
}

/** Follows the circuits of kinds of requests; returns true when one of them has changed. */
export function followKinds(
  { holds }: Circuits,
  reports: readonly OwnedReport[],
  self: Self,
): boolean {
  const kinds = new Map<string, RequestKind>();
  for (const { report } of reports) {
    for (const { kind } of report.circuits) if (kind !== null) kinds.set(keyOf(kind), kind);
  }
  for (const { kind, isOpenForOthers } of holds.breakers) {
    if (isOpenForOthers) kinds.set(keyOf(kind), kind);
  }
  let hasChanged = false;
  for (const kind of kinds.values())
    if (followKind(holds, { kind, reports, self })) hasChanged = true;
  return hasChanged;
}

function followKind(
  holds: Holds,
  { kind, reports, self }: { kind: RequestKind; reports: readonly OwnedReport[]; self: Self },
): boolean {
  const { opened, unavailability } = openedElsewhere(reports, kind);
  const failure = unavailability && refusedAs(unavailability);
  const isAboutCredit = unavailability?.reason === "out_of_quota";
  const served = reports.map(({ report }) =>
    isAboutCredit
      ? report.servedKinds.find(([key]) => key === keyOf(kind))?.[1]
      : (report.servedAtMs ?? undefined),
  );
  const servedAtMs = Math.max(
    self.dates.dateOf(holds.servedAtMs(kind, isAboutCredit)),
    ...served.map((atMs) => atMs ?? Number.NEGATIVE_INFINITY),
  );
  return follow(holds.breakerOf(kind), { reports, opened, servedAtMs, failure }, self);
}
