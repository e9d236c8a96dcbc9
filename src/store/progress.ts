/**
 * The part of the store for the course of batches. A row for each batch that runs for more than a moment holds a bounded
 * number of samples. They are apart from the row of the batch, which every journal segment changes.
 */
import type { BatchId } from "../batch/batch.ts";
import type { ProgressSample, StoredProgress } from "../batch/progress.ts";

export interface BatchSamples {
  readonly batchId: BatchId;
  readonly samples: readonly ProgressSample[];
}

/** A running batch, its counters as they are, and its samples so far. */
export interface RunningProgress extends BatchSamples, Omit<ProgressSample, "atMs"> {
  readonly startedAtMs: number;
}

export interface ProgressStore {
  /** Finds these batches, in any order. One that is not in progress is left out. */
  findRunningProgress(ids: readonly BatchId[]): Promise<RunningProgress[]>;
  /**
   * Replaces the samples of these batches. A batch is left out if it does not exist any more, or has a sample as late as
   * the last one: another replica has taken that while this one stood still.
   */
  recordSamples(progress: readonly BatchSamples[]): Promise<void>;
  /** Finds the samples and the latencies of a batch; none for one without. */
  findProgress(batchId: BatchId): Promise<StoredProgress>;
}
