/** The part of the store for leases: what they are, and how they are kept and given back. */
import type { Batch, BatchId, StopReason, StoredFile } from "../batch/batch.ts";
import type { Decimal } from "../batch/price.ts";
import type { Claim } from "./claim.ts";

/** The bits of the random number below the count of claims in an epoch. A copy to the other database takes epochs along. */
export const EPOCH_RANDOM_BITS = 20;

/** The right to validate or to finalize a batch. */
export interface BatchLease {
  readonly batchId: BatchId;
  readonly epoch: number;
}

/** The right to write the journal of a chunk. */
export interface ChunkLease {
  readonly batchId: BatchId;
  readonly chunkNumber: number;
  readonly epoch: number;
}

export interface ClaimedBatch {
  readonly lease: BatchLease;
  readonly batch: Batch;
  /** The input file; null when it was deleted or has expired, which can only be before the batch is in progress. */
  readonly input: StoredFile | null;
  /** The number of validations, or finalizations, that failed before this one. */
  readonly failureCount: number;
}

/** The answer to a holder that renews its leases. */
export interface Renewal {
  readonly lostBatches: readonly BatchLease[];
  readonly lostChunks: readonly ChunkLease[];
  /** The batches of still-held leases that are to stop. */
  readonly stopping: readonly { readonly batchId: BatchId; readonly reason: StopReason }[];
  /** The paused batches of still-held leases. */
  readonly paused: readonly BatchId[];
  /** The budgets of the batches of still-held leases that have one. */
  readonly budgets: readonly { readonly batchId: BatchId; readonly budget: Decimal }[];
}

/** The part of the {@link Store} port for leases. */
export interface LeaseStore {
  /** Extends the leases that are still held, and returns the others. */
  renewLeases(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Promise<Renewal>;
  /**
   * Gives the chunk back so that any worker may claim it at once: one that serves its model, or `model`, which then is the model
   * of the chunk. It must be the model of some of its lines.
   */
  releaseChunkIfLeased(lease: ChunkLease, model?: string): Promise<boolean>;
  releaseBatchIfLeased(lease: BatchLease): Promise<boolean>;
  /** Counts a run that failed. The lease must run out, so that the next run does not follow at once. */
  countChunkFailureIfLeased(lease: ChunkLease): Promise<boolean>;
  /** Counts a validation or a finalization that failed, in the same way. */
  countBatchFailureIfLeased(lease: BatchLease): Promise<boolean>;
}
