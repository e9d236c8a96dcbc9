/** Finds why no line of a batch goes on: its upstreams, the queue, or a journal that cannot be written. */
import type { Waiting } from "../../batch/forecast.ts";
import type { WaitingReason } from "../../contract/batch-extension.ts";
import type { OpenBatch } from "../../store/batches.ts";
import type { FleetRoute } from "./fleet-routes.ts";

/** The reasons that end by themselves at a time that can be forecast. */
export const END_IS_KNOWN: ReadonlySet<WaitingReason> = new Set(["no_room", "outside_hours"]);

/** Whether something has to be mended before any line goes on. */
export const isUnanswered = (waiting: Waiting | null): boolean =>
  waiting !== null && !END_IS_KNOWN.has(waiting.reason);

/** The order of importance: the first reason is reported where replicas differ. */
const ORDER: readonly WaitingReason[] = [
  "refused_credentials",
  "out_of_quota",
  "wrong_address",
  "upstream_down",
  "journal_not_writable",
  "no_room",
  "outside_hours",
];

type Wait = Omit<Waiting, "sinceMs">;

/**
 * Returns null while lines go on, before they are known, and after the last one. `routesOf` returns the routes of a
 * model at all replicas.
 */
export function waitOf(
  { project, isValidated, isSending, work }: OpenBatch,
  routesOf: (model: string) => readonly FleetRoute[],
): Wait | null {
  if (!isValidated || work.length === 0) return null;
  const waits = work.map(({ model }) => waitAt(routesOf(model), { project, model }));
  // As long as one of its models is served, the batch goes on.
  const [first] = waits.every((wait) => wait !== null) ? waits : [];
  if (first !== undefined) return first;
  return isSending ? null : { reason: "no_room", upstreamError: null };
}

/** Returns null while one of the replicas takes lines. */
function waitAt(
  routes: readonly FleetRoute[],
  kind: { readonly project: string; readonly model: string },
): Wait | null {
  if (routes.length === 0) return { reason: "not_served", upstreamError: null };
  let worst: Wait | null = null;
  for (const route of routes) {
    const wait = route.canWrite ? route.unavailabilityFor(kind) : UNWRITABLE;
    if (wait === null) return null;
    if (worst === null || ORDER.indexOf(wait.reason) < ORDER.indexOf(worst.reason)) worst = wait;
  }
  return worst;
}

const UNWRITABLE: Wait = { reason: "journal_not_writable", upstreamError: null };
