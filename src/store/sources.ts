/** The part of the store for batches that run lines of other batches again. */
import type { Batch, BatchId, StoredFile } from "../batch/batch.ts";
import type { Receipt } from "./idempotency.ts";
import type { BatchQuotas, FileQuotas } from "./quotas.ts";

/** A batch and the file of lines that was made for it. */
export interface DerivedBatch {
  readonly batch: Batch;
  readonly file: StoredFile;
  readonly receipt?: Receipt | undefined;
  readonly quotas?: (BatchQuotas & FileQuotas) | undefined;
}

/** The files of a source whose results are merged; null for a file that it does not have. */
export interface MergedResults {
  readonly output: StoredFile | null;
  readonly error: StoredFile | null;
}

/** A batch that was made of the lines of `sourceId`. */
export interface Retry {
  readonly sourceId: BatchId;
  readonly batchId: BatchId;
}

/** The most retries that are listed of one batch. */
export const MAX_RETRIES = 20;

/** The part of the {@link Store} port for the sources of batches. */
export interface SourceStore {
  /**
   * Publishes the file and the batch that reads it in one commit. `gone` says that the source, or a file that the batch
   * merges, was deleted, and `revoked` that the intent of the blob was. Then nothing is stored. Rejects with
   * `QuotaExceeded` when the project has no room for one of them.
   */
  insertDerivedBatch(derived: DerivedBatch): Promise<"stored" | "gone" | "revoked">;
  /** Finds the results that an open merged batch reads. They may be deleted: their bytes stay until the batch ends. */
  findMergedResults(batch: Batch): Promise<MergedResults>;
  /** Lists the batches made of the lines of each of these, the newest first. */
  listRetries(sourceIds: readonly BatchId[]): Promise<Retry[]>;
}
