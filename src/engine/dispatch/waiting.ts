/** Finds why no line of a batch goes on: its upstreams, the queue, or a journal that cannot be written. */
import type { Waiting } from "../../batch/forecast.ts";
import type { WaitingReason } from "../../contract/batch.ts";
import type { OpenBatch } from "../../store/batches.ts";
import type { Upstreams } from "../../upstream/upstream.ts";

/** The reasons that end by themselves at a time that can be forecast. */
export const END_IS_KNOWN: ReadonlySet<WaitingReason> = new Set(["no_room", "outside_hours"]);

/** Whether something has to be mended before any line goes on. */
export const isUnanswered = (waiting: Waiting | null): boolean =>
  waiting !== null && !END_IS_KNOWN.has(waiting.reason);

interface Surroundings {
  readonly upstreams: Pick<Upstreams, "findRoute">;
  /** Whether answers can be kept at the moment. */
  readonly canWrite: boolean;
}

type Wait = Omit<Waiting, "sinceMs">;

/** Returns null while lines go on, before they are known, and after the last one. */
export function waitOf(
  { project, isValidated, isSending, work }: OpenBatch,
  { upstreams, canWrite }: Surroundings,
): Wait | null {
  if (!isValidated || work.length === 0) return null;
  if (!canWrite) return { reason: "journal_not_writable", upstreamError: null };
  const waits = work.map(({ model }): Wait | null => {
    const route = upstreams.findRoute(model);
    if (route === null) return { reason: "not_served", upstreamError: null };
    return route.unavailabilityFor({ project, model });
  });
  // As long as one of its models is served, the batch goes on.
  const [first] = waits.every((wait) => wait !== null) ? waits : [];
  if (first !== undefined) return first;
  return isSending ? null : { reason: "no_room", upstreamError: null };
}
