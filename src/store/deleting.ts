/** The part of the store for batches that clients delete: a mark at once, and the removal of the rows later. */
import type { BatchId, ScopedId } from "../batch/batch.ts";

export interface DeletingStore {
  /**
   * Deletes a batch for clients at once. Cancels it if it is open, takes its lease from a finalizer, ends its
   * deliveries, of which those that have begun clean up first, and deletes its result files, and with `withInput` its input
   * file. Its rows and its journal stay until {@link forgetBatch}. Returns false when there is no such batch in the
   * project.
   */
  deleteBatchIfPresent(
    batch: ScopedId<"batch">,
    options: { readonly withInput: boolean },
  ): Promise<boolean>;
  /** Lists deleted batches without open chunks and deliveries, for which nothing can be written any more, behind `after`. */
  listDeletedBatches(limit: number, after?: BatchId): Promise<BatchId[]>;
  /** Removes all rows of a batch that {@link listDeletedBatches} has listed, and whose journal was deleted. */
  forgetBatch(batchId: BatchId): Promise<void>;
  /** Drops the tombstones of all lists that are older than 24 hours: see `tombstones.ts`. */
  forgetTombstones(): Promise<void>;
}
