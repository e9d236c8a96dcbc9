/** Finds why no line of a batch goes on: its upstreams, the queue, a budget or quota, or a journal that cannot be written. */
import { type Wait, type Waiting, worstOf } from "../../batch/forecast.ts";
import type { WaitingReason } from "../../contract/batch-extension.ts";
import type { OpenBatch } from "../../store/batches.ts";
import type { FleetRoute } from "./fleet-routes.ts";

/** The reasons that end by themselves at a time that can be forecast. */
export const END_IS_KNOWN: ReadonlySet<WaitingReason> = new Set([
  "no_room",
  "outside_hours",
  "retrying",
]);

/** Whether something has to be mended before any line goes on. */
export const isUnanswered = (waiting: Waiting | null): boolean =>
  waiting !== null && !END_IS_KNOWN.has(waiting.reason);

/**
 * Returns null while lines go on, before they are known, and after the last one. `routesOf` returns the routes of a
 * model at all replicas, and `stalls` has a reason for each chunk that is held without a line under way.
 */
export function waitOf(
  { project, isValidated, heldCount, lostCount, work }: OpenBatch,
  routesOf: (model: string) => readonly FleetRoute[],
  stalls: readonly Wait[] = [],
): Wait | null {
  if (!isValidated || work.length === 0) return null;
  const waits = work.map(({ model }) => waitAt(routesOf(model), { project, model }));
  // As long as one of its models is served, the batch goes on.
  const [first] = waits.every((wait) => wait !== null) ? waits : [];
  const goesOn = heldCount > stalls.length;
  // Servers that ask for a pause now and then answer the lines that they have meanwhile.
  if (first !== undefined && !(goesOn && first.reason === "no_room")) return first;
  if (goesOn) return null;
  const reason = lostCount > 0 ? "retrying" : "no_room";
  return worstOf(stalls) ?? { reason, upstreamError: null };
}

/** Returns null while one of the replicas takes lines. */
function waitAt(
  routes: readonly FleetRoute[],
  kind: { readonly project: string; readonly model: string },
): Wait | null {
  if (routes.length === 0) return { reason: "not_served", upstreamError: null };
  return worstOf(
    routes.map((route) => (route.canWrite ? route.unavailabilityFor(kind) : UNWRITABLE)),
  );
}

export const UNWRITABLE: Wait = { reason: "journal_not_writable", upstreamError: null };
