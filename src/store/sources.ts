/** The part of the store for batches whose input is made of lines of other batches. */
import type { Batch, BatchId, LineMark, MergedFiles, StoredFile } from "../batch/batch.ts";
import type { Claim } from "./claim.ts";
import type { BatchLease } from "./leases.ts";
import type { ProjectTurn } from "./project-turns.ts";
import type { FileQuotas } from "./quotas.ts";

/** A batch whose input is to be made, because its source has ended. */
export interface BatchToDerive {
  readonly lease: BatchLease;
  readonly batch: Batch;
  /** The number of tries that failed before. */
  readonly failureCount: number;
}

/** The input that was made for a batch, and what the batch takes over from its source. */
export interface DerivedInput {
  readonly file: StoredFile;
  readonly merge: MergedFiles | null;
  readonly lineMarks: readonly LineMark[];
  readonly defaultModel: string | null;
  readonly quotas: FileQuotas | undefined;
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

/** The most waiting batches that one statement looks at. */
export const WAITING_PAGE = 1_000;

/** The most sources that one statement looks at. */
export const SOURCES_PAGE = 20;

/** Tells a claim whose turn it is, and how thoroughly to look. */
export interface DerivingTurn extends ProjectTurn {
  /** Whether to look at each waiting batch, also where its source is not marked as awaited. */
  readonly isThorough: boolean;
}

/** The place of a batch in the order of projects, and of the batches of each. */
export type BatchPlace = {
  readonly project: string;
  readonly sequence: number;
};

/** The place behind all batches of a project. */
export const behind = (project: string): BatchPlace => ({
  project,
  sequence: Number.MAX_SAFE_INTEGER,
});

/** The part of the {@link Store} port for the sources of batches. */
export interface SourceStore {
  /**
   * Leases a batch whose input is to be made and whose source has ended or is gone. Projects take turns, as they do
   * in validation. A batch with an open source costs nothing: what is read are the sources that are awaited and have ended.
   * A source lacks the mark where an older version stored the batch that waits or deleted the source, and where its mark was
   * taken away as a batch was stored. Only a thorough look finds such a batch. It reads all that wait.
   */
  claimBatchToDerive(claim: Claim, turn?: DerivingTurn): Promise<BatchToDerive | null>;
  /**
   * Publishes the input and lets the batch be validated, in one commit. `lost` says that the lease was, `gone` that the
   * source, or a file that the batch merges, was deleted, and `revoked` that the intent of the blob was. Then nothing is
   * stored. Rejects with `QuotaExceeded` when the project has no room for the file.
   */
  publishInputIfLeased(
    lease: BatchLease,
    input: DerivedInput,
  ): Promise<"stored" | "lost" | "gone" | "revoked">;
  /** Finds the input of an open batch. It may be deleted: its bytes stay until the batch ends. */
  findInput(batch: Batch): Promise<StoredFile | null>;
  /** Finds the results that an open merged batch reads. They may be deleted: their bytes stay until the batch ends. */
  findMergedResults(batch: Batch): Promise<MergedResults>;
  /** Lists the batches made of the lines of each of these, the newest first. */
  listRetries(sourceIds: readonly BatchId[]): Promise<Retry[]>;
}
