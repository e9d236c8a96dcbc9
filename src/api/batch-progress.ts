/** The course of a batch, and how long its lines took. */
import type { BatchId, ScopedId } from "../batch/batch.ts";
import { type LatencySummary, summarizeLatencies } from "../batch/latency.ts";
import { courseOf, type ProgressPoint } from "../batch/progress.ts";
import type { Store } from "../store/store.ts";
import type { Batches } from "./batches.ts";

interface BatchProgressDeps {
  readonly batches: Pick<Batches, "find">;
  readonly store: Pick<Store, "findProgress">;
  /** The present date by the clock of the store. */
  readonly nowMs: () => number;
}

export interface BatchCourse {
  readonly batchId: BatchId;
  readonly points: readonly ProgressPoint[];
  readonly latency: LatencySummary | null;
}

export type FindCourse = (asked: ScopedId<"batch">) => Promise<BatchCourse>;

export const courseFinder =
  ({ batches, store, nowMs }: BatchProgressDeps): FindCourse =>
  async (asked) => {
    const batch = await batches.find(asked);
    const { samples, latencyCounts } = await store.findProgress(batch.id);
    return {
      batchId: batch.id,
      points: courseOf(batch, samples, nowMs()),
      latency: summarizeLatencies(latencyCounts),
    };
  };
