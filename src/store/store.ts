/**
 * The port for facts: files, batches, chunks, leases and journal segments.
 *
 * One method is one transaction. There is deliberately no `transaction(fn)`: better-sqlite3 runs its callback
 * synchronously and node-postgres does not, so no port could promise both. Preconditions are in the names: an `…If…`
 * method changes nothing, and says so, when its condition does not hold.
 *
 * Long work is done page by page, each page a transaction and a turn of the event loop. Lists are read so, and rows
 * that nothing needs are deleted so. A large change is prepared so before the one transaction that counts.
 *
 * Only the holder of a lease may write. A lease has an epoch that grows with each claim. Every write of a worker
 * names its epoch, and a stale one changes nothing.
 *
 * Only the store says what time it is: whether a lease, a window or a file is over, and when something changed. No
 * method may take the present time from its caller, because the clocks of two machines differ. One machine would then
 * take away what the other still holds. Callers give durations (`ttlMs`) and the facts of objects that they make,
 * such as `createdAtMs` and `expiresAtMs`.
 *
 * An id that a client wrote comes as a `ScopedId`, with the project of the client's key. A call without the project
 * does not compile. An id of another project must look like an id that never was.
 */
import type {
  Batch,
  BatchId,
  Chunk,
  Counts,
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
import type { IntentStore } from "./intents.ts";
import type { UploadStore } from "./uploads.ts";

/** A page of a list, newest first unless asked otherwise. */
export interface Page<T> {
  readonly data: readonly T[];
  readonly hasMore: boolean;
}

export interface FileQuery {
  readonly project: string;
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
  /** Null when the input file was deleted or has expired, which can only be before the batch is in progress. */
  readonly input: StoredFile | null;
  /** The number of validations, or finalizations, that failed before this one. */
  readonly failureCount: number;
}

export interface ClaimedChunk {
  readonly lease: ChunkLease;
  readonly chunk: Chunk;
  readonly batch: Batch;
  readonly inputBlobKey: string;
  /** The number of runs that failed since the last segment. */
  readonly failureCount: number;
  /** The segments of earlier leases, oldest first. */
  readonly segments: readonly Segment[];
}

/** Chunks of one batch and model that a worker could claim. */
export interface RunnableChunks {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  readonly model: string;
  /** The number of lines in the chunk that a claim would get. */
  readonly nextLineCount: number;
  /** The number of lines of the batch, whatever their model, without an answer in the journal. */
  readonly remainingLineCount: number;
}

/** A batch with lines that are still to be sent, and their number. */
export interface OpenBatch {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  /** The lines of a batch are not known before it is validated. */
  readonly isValidated: boolean;
  /** Whether a worker holds one of its chunks. */
  readonly isSending: boolean;
  readonly remainingLineCount: number;
  /** The lines of its open chunks, those with an answer included. */
  readonly work: readonly { readonly model: string; readonly lineCount: number }[];
}

/** A blob of journal records. It counts if, and only if, this row exists. */
export interface Segment {
  readonly blobKey: string;
  readonly bytes: number;
  /** The checksum of the whole blob; null in segments of older versions. */
  readonly crc32: number | null;
}

/** The figures that a new segment adds to its batch, counted once with it. */
export interface SegmentEntry extends Segment {
  readonly crc32: number;
  readonly completed: number;
  readonly failed: number;
  readonly usage: Usage;
}

/** The end of a batch whose lines are not accepted. */
export interface BatchFailure {
  readonly faults: readonly Fault[];
  readonly announcements: readonly Announcement[];
}

/** The plan of a batch whose lines are accepted. */
export interface BatchPlan {
  readonly model: string;
  /** The model is settled once, and later configurations do not change it. */
  readonly defaultModel: string | null;
  readonly total: number;
  readonly chunks: readonly PlannedChunk[];
}

/** The answer to a holder that renews its leases. */
export interface Renewal {
  readonly lostBatches: readonly BatchLease[];
  readonly lostChunks: readonly ChunkLease[];
  /** The batches of still-held leases that are to stop. */
  readonly stopping: readonly { readonly batchId: BatchId; readonly reason: StopReason }[];
}

export interface ChunkJournal {
  readonly chunk: Chunk;
  readonly segments: readonly Segment[];
}

/** The files with which a batch ends; null in place of an empty file. */
export interface ResultFiles {
  readonly output: StoredFile | null;
  readonly error: StoredFile | null;
}

export interface BatchResult extends ResultFiles {
  readonly announcements: readonly Announcement[];
  /** The rows of the files, without the rows of lines that never ran. */
  readonly counts: Pick<Counts, "completed" | "failed">;
  /** The segments that could not be read. The files do not have their part of the usage. */
  readonly lostBlobKeys: readonly string[];
}

/** The work that is left, in all batches that are not final. */
export interface OpenWork {
  readonly batchCounts: Readonly<Partial<Record<BatchStatus, number>>>;
  /** The number of lines without an answer in the journal, over all validated batches. */
  readonly lineCount: number;
  /** The first end of a window that a batch may still miss; null when there is none. */
  readonly firstExpiresAtMs: number | null;
}

/** A chunk with lines that have no readable record, in a batch without open chunks. */
export interface IncompleteChunk {
  readonly chunkNumber: number;
  /** The keys of its segments that cannot be read. */
  readonly lostBlobKeys: readonly string[];
}

export interface Store extends DeliveryStore, UploadStore, IdempotencyStore, IntentStore {
  /**
   * Publishes a file whose blob is durable, with the receipt of its idempotency key, if it came with one. Returns
   * false when the blob was given up: the file does not exist, and never will.
   */
  insertFileIfDeclared(file: StoredFile, receipt?: Receipt): Promise<boolean>;
  findFile(file: ScopedId<"file">): Promise<StoredFile | null>;
  /** Lists files that have not expired. Returns null when `after` names no file of the project. */
  listFiles(query: FileQuery): Promise<Page<StoredFile> | null>;
  /** Deletes the file for clients at once; its bytes stay while an open batch reads them. */
  deleteFileIfPresent(file: ScopedId<"file">): Promise<boolean>;
  /** Deletes expired files as {@link deleteFileIfPresent} does, one page a call. Returns none when none are left. */
  deleteExpiredFiles(): Promise<FileId[]>;
  /** Lists deleted files that no open batch reads any more. */
  listUnusedFiles(limit: number): Promise<StoredFile[]>;
  /** Forgets a deleted file whose blob is gone. */
  forgetFile(id: FileId): Promise<void>;

  /** Stores a batch, with the receipt of its idempotency key, if it came with one. */
  insertBatch(batch: Batch, receipt?: Receipt): Promise<void>;
  findBatch(batch: ScopedId<"batch">): Promise<Batch | null>;
  /** Returns null when `after` names no batch of the project. */
  listBatches(query: BatchQuery): Promise<Page<Batch> | null>;
  countOpenWork(): Promise<OpenWork>;
  /**
   * Moves an open batch to `cancelling` and closes its chunks without a holder. A batch with many such chunks has its
   * first page closed, and {@link closeAbandonedChunks} closes the others. Returns false when the batch belongs to
   * another project, is final, or is already stopping.
   */
  cancelBatchIfOpen(batch: ScopedId<"batch">): Promise<boolean>;

  /**
   * Leases the oldest batch that waits for validation, from the project whose name follows `formerProject`, or else
   * from the first project. Projects take turns when a caller passes the project of its former claim.
   */
  claimBatchToValidate(claim: Claim, formerProject?: string): Promise<ClaimedBatch | null>;
  failBatchIfLeased(lease: BatchLease, failure: BatchFailure): Promise<boolean>;
  /** Moves `validating → in_progress` and creates the chunks. */
  startBatchIfLeased(lease: BatchLease, plan: BatchPlan): Promise<boolean>;

  /** Lists each batch and model with a chunk that a worker could claim. */
  listRunnable(): Promise<RunnableChunks[]>;
  /**
   * Leases the first chunk of the batch and model without a holder, unless the batch is to stop or its window is
   * over.
   */
  claimChunk(
    claim: Claim & { readonly batchId: BatchId; readonly model: string },
  ): Promise<ClaimedChunk | null>;
  /** Lists every batch that is to be validated or has lines still to be sent. */
  listOpenBatches(): Promise<OpenBatch[]>;
  /** Adds a segment and its counts. */
  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean>;
  /** Takes unreadable segments out of the chunk, and their counts and usage out of the batch. */
  dropSegmentsIfLeased(lease: ChunkLease, blobKeys: readonly string[]): Promise<boolean>;
  /** Counts a run that failed. The lease must run out, so that the next run does not follow at once. */
  countChunkFailureIfLeased(lease: ChunkLease): Promise<boolean>;
  /** Counts a validation or a finalization that failed, in the same way. */
  countBatchFailureIfLeased(lease: BatchLease): Promise<boolean>;
  /**
   * Adds the last segment, if any, and ends the chunk. It does so only when every line has its record, or the batch
   * is stopping. Its batch moves to `finalizing` when this was its last open chunk and the batch is not stopping.
   */
  closeChunkIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null): Promise<boolean>;
  /** Gives the chunk back so that any worker may claim it at once. */
  releaseChunkIfLeased(lease: ChunkLease): Promise<boolean>;
  releaseBatchIfLeased(lease: BatchLease): Promise<boolean>;
  /** Extends the leases that are still held, and returns the others. */
  renewLeases(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Promise<Renewal>;

  /**
   * Marks batches whose window is over to stop, and closes their free chunks as {@link cancelBatchIfOpen} does. A
   * call handles one page of batches, and returns none when none are left.
   */
  stopExpiredBatches(): Promise<BatchId[]>;
  /** Closes the chunks of stopping batches that have no holder any more. */
  closeAbandonedChunks(): Promise<number>;

  /** Leases a batch that is not final, is past validation or stopping, and has no open chunk. */
  claimBatchToFinalize(claim: Claim): Promise<ClaimedBatch | null>;
  /** Lists the chunks of a batch with their segments, in the order of their numbers. */
  listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]>;
  /**
   * Opens chunks again, without their unreadable segments, and moves `finalizing → in_progress`. Returns false also
   * when the batch is to stop.
   */
  reopenChunksIfLeased(lease: BatchLease, chunks: readonly IncompleteChunk[]): Promise<boolean>;
  /**
   * Publishes the files, moves the batch to the final status that its stop reason calls for (`completed` without
   * one), and records its announcements. Returns false also when the blob of a file was given up.
   */
  finishBatchIfLeased(lease: BatchLease, result: BatchResult): Promise<boolean>;
  /**
   * Ends a batch whose results cannot be written. Its status follows its stop reason, and is `failed` without one.
   * The batch has no files, counts or usage.
   */
  endWithoutResultsIfLeased(lease: BatchLease, failure: BatchFailure): Promise<boolean>;
  /** Lists final batches that still have chunk rows, and so may have journal blobs. */
  listBatchesToTidy(limit: number): Promise<BatchId[]>;
  /** Drops the chunk and segment rows of a final batch. */
  forgetChunks(batchId: BatchId): Promise<void>;
  /** Rejects when the store cannot be used. */
  ping(): Promise<void>;
  close(): Promise<void>;
}
