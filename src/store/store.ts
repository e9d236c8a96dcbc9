/**
 * The port for facts: files, batches, chunks, leases and journal segments.
 *
 * One method is one transaction. There is deliberately no `transaction(fn)`: better-sqlite3 runs its
 * callback synchronously and node-postgres does not, so one of them would be a lie. Preconditions are
 * in the names: an `…If…` method changes nothing and says so when its condition does not hold.
 *
 * Whoever holds a lease may write and nobody else can. A lease has an epoch that grows with each
 * claim; every write of a worker names it, and a stale one changes nothing.
 *
 * An id that a client wrote comes as a `ScopedId`, with the project of the client's key. Without the project it does not
 * compile, and what belongs to another project is as unknown as what never was.
 */
import type {
  Batch,
  BatchId,
  Chunk,
  Fault,
  FileId,
  ScopedId,
  StopReason,
  StoredFile,
  UntrustedId,
  Usage,
} from "../batch/batch.ts";
import type { PlannedChunk } from "../batch/plan.ts";
import type { BatchStatus } from "../contract/batch.ts";
import type { FilePurpose } from "../contract/file.ts";
import type { Claim } from "./claim.ts";
import type { Announcement, DeliveryStore } from "./deliveries.ts";
import type { IdempotencyStore, Receipt } from "./idempotency.ts";
import type { UploadStore } from "./uploads.ts";

/** A page of a list, newest first unless asked otherwise. */
export interface Page<T> {
  readonly data: readonly T[];
  readonly hasMore: boolean;
}

export interface FileQuery {
  readonly project: string;
  /** Files that have expired by then are left out. */
  readonly nowMs: number;
  readonly purpose: FilePurpose | null;
  readonly order: "asc" | "desc";
  readonly limit: number;
  readonly after: UntrustedId<"file"> | null;
}

export interface BatchQuery {
  readonly project: string;
  readonly limit: number;
  readonly after: UntrustedId<"batch"> | null;
}

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
  /** Null when the input file was deleted or has expired (only before the batch is in progress). */
  readonly input: StoredFile | null;
}

export interface ClaimedChunk {
  readonly lease: ChunkLease;
  readonly chunk: Chunk;
  readonly batch: Batch;
  readonly inputBlobKey: string;
  /** What earlier leases wrote, oldest first. */
  readonly segments: readonly Segment[];
}

/** Chunks of one batch and route that somebody could claim. */
export interface RunnableChunks {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  readonly route: string;
  /** Of the chunk that a claim would get. */
  readonly nextLineCount: number;
  /** Lines of the batch, whatever their route, without an answer in the journal. */
  readonly remainingLineCount: number;
}

/** A batch that lines are still to be sent of, and how many. */
export interface OpenBatch {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  /** Until then its lines are not known. */
  readonly isValidated: boolean;
  /** Whether somebody holds one of its chunks. */
  readonly isSending: boolean;
  readonly remainingLineCount: number;
  /** Lines of its open chunks, those with an answer included. */
  readonly work: readonly { readonly route: string; readonly lineCount: number }[];
}

/** A blob of journal records. It exists if, and only if, this row does. */
export interface Segment {
  readonly blobKey: string;
  readonly bytes: number;
}

/** What a new segment adds to its batch, counted once with it. */
export interface SegmentEntry extends Segment {
  readonly completed: number;
  readonly failed: number;
  readonly usage: Usage;
}

/** How a batch ends whose lines are not accepted. */
export interface BatchFailure {
  readonly faults: readonly Fault[];
  readonly announcements: readonly Announcement[];
}

/** Where a batch goes when its lines are accepted. */
export interface BatchPlan {
  readonly model: string;
  /** Settled once, whatever the configuration says later. */
  readonly defaultModel: string | null;
  readonly total: number;
  readonly chunks: readonly PlannedChunk[];
}

/** What the holder of leases learns when renewing them. */
export interface Renewal {
  readonly lostBatches: readonly BatchLease[];
  readonly lostChunks: readonly ChunkLease[];
  /** Batches of the still-held leases that are to stop. */
  readonly stopping: readonly { readonly batchId: BatchId; readonly reason: StopReason }[];
}

export interface ChunkJournal {
  readonly chunk: Chunk;
  readonly segments: readonly Segment[];
}

/** Files that a batch ends with; null where a file would be empty. */
export interface ResultFiles {
  readonly output: StoredFile | null;
  readonly error: StoredFile | null;
}

export interface BatchResult extends ResultFiles {
  readonly announcements: readonly Announcement[];
}

/** What is still to be done, in all batches that are not final. */
export interface OpenWork {
  readonly batchCounts: Readonly<Partial<Record<BatchStatus, number>>>;
  /** Lines without an answer in the journal, of batches that were validated. */
  readonly lineCount: number;
  /** When the first window of a batch that may still miss it ends; null when there is none. */
  readonly firstExpiresAtMs: number | null;
}

export interface Store extends DeliveryStore, UploadStore, IdempotencyStore {
  /** With the receipt of its idempotency key, if it came with one. */
  insertFile(file: StoredFile, receipt?: Receipt): Promise<void>;
  findFile(file: ScopedId<"file">): Promise<StoredFile | null>;
  /** Null when `after` names no file of the project. */
  listFiles(query: FileQuery): Promise<Page<StoredFile> | null>;
  /** The file is gone for clients at once; its bytes stay while an open batch reads them. */
  deleteFileIfPresent(file: ScopedId<"file">, nowMs: number): Promise<boolean>;
  /** Deletes the files whose time has come, as {@link deleteFileIfPresent} does. */
  deleteExpiredFiles(nowMs: number): Promise<FileId[]>;
  /** Deleted files that no open batch reads any more. */
  listUnusedFiles(limit: number): Promise<StoredFile[]>;
  /** Forgets a deleted file whose blob is gone. */
  forgetFile(id: FileId): Promise<void>;

  /** With the receipt of its idempotency key, if it came with one. */
  insertBatch(batch: Batch, receipt?: Receipt): Promise<void>;
  findBatch(batch: ScopedId<"batch">): Promise<Batch | null>;
  /** Null when `after` names no batch of the project. */
  listBatches(query: BatchQuery): Promise<Page<Batch> | null>;
  countOpenWork(): Promise<OpenWork>;
  /**
   * Moves an open batch to `cancelling` and closes its chunks that nobody holds. False when the batch
   * is not the project's, is final, or is already stopping.
   */
  cancelBatchIfOpen(batch: ScopedId<"batch">, nowMs: number): Promise<boolean>;

  /**
   * Leases the oldest batch that waits for validation, of the project whose name comes next after `formerProject`, or
   * of the first one: who names the project of the former claim lets them take turns.
   */
  claimBatchToValidate(claim: Claim, formerProject?: string): Promise<ClaimedBatch | null>;
  failBatchIfLeased(lease: BatchLease, failure: BatchFailure, nowMs: number): Promise<boolean>;
  /** Moves `validating → in_progress` and creates the chunks. */
  startBatchIfLeased(lease: BatchLease, plan: BatchPlan, nowMs: number): Promise<boolean>;

  /** For each batch and route of which somebody could claim a chunk. */
  listRunnable(nowMs: number): Promise<RunnableChunks[]>;
  /** Leases the first chunk of the batch and route that nobody holds, unless the batch is to stop or its window is over. */
  claimChunk(
    claim: Claim & { readonly batchId: BatchId; readonly route: string },
  ): Promise<ClaimedChunk | null>;
  /** Every batch with lines that are still to be sent, or that is to be validated. */
  listOpenBatches(): Promise<OpenBatch[]>;
  /** Adds a segment and its counts. */
  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean>;
  /**
   * Adds the last segment, if any, and ends the chunk: only when every line has its record, or the batch is
   * stopping. Its batch moves to `finalizing` when this was
   * its last open chunk and it is not stopping.
   */
  closeChunkIfLeased(
    lease: ChunkLease,
    lastEntry: SegmentEntry | null,
    nowMs: number,
  ): Promise<boolean>;
  /** Gives the chunk back so that anyone may claim it at once. */
  releaseChunkIfLeased(lease: ChunkLease): Promise<boolean>;
  releaseBatchIfLeased(lease: BatchLease): Promise<boolean>;
  /** Extends the leases that are still held and tells which are not. */
  renewLeases(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Promise<Renewal>;

  /** Marks batches whose window is over to stop, and closes their chunks that nobody holds. */
  stopExpiredBatches(nowMs: number): Promise<BatchId[]>;
  /** Closes chunks of stopping batches whose holder is gone. */
  closeAbandonedChunks(nowMs: number): Promise<number>;

  /** Leases a batch that is not final, is past validation or stopping, and has no open chunk. */
  claimBatchToFinalize(claim: Claim): Promise<ClaimedBatch | null>;
  /** The chunks of a batch with their segments, in the order of their numbers. */
  listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]>;
  /**
   * Publishes the files, moves the batch to the final status that its stop reason calls for (`completed`
   * without one), and records its announcements.
   */
  finishBatchIfLeased(lease: BatchLease, result: BatchResult, nowMs: number): Promise<boolean>;
  /** Final batches that still have chunk rows, and so may have journal blobs. */
  listBatchesToTidy(limit: number): Promise<BatchId[]>;
  /** Drops the chunk and segment rows of a final batch. */
  forgetChunks(batchId: BatchId): Promise<void>;

  /** Those of `keys` that no row names: garbage, if they are old enough. */
  findUnknownBlobKeys(keys: readonly string[]): Promise<string[]>;
  /** Rejects when the store cannot be used. */
  ping(): Promise<void>;
  close(): Promise<void>;
}
