/**
 * The port for facts: files, batches, chunks, leases and journal segments.
 *
 * One method is one transaction. There is deliberately no `transaction(fn)`: better-sqlite3 runs its
 * callback synchronously and node-postgres does not, so one of them would be a lie. Preconditions are
 * in the names: an `…If…` method changes nothing and says so when its condition does not hold.
 *
 * What may be long is done page by page, each in a transaction and a turn of the event loop of its own: lists are read
 * so, rows that nothing needs are deleted so, and a large change is prepared so before the one transaction that counts.
 *
 * Whoever holds a lease may write and nobody else can. A lease has an epoch that grows with each
 * claim; every write of a worker names it, and a stale one changes nothing.
 *
 * What time it is, is the store's to say: whether a lease, a window or a file is over, and when something changed. No
 * method takes the present time from its caller, because the clocks of two machines differ, and one of them would take
 * away what the other still holds. Callers give durations (`ttlMs`) and the facts of objects that they make, such as
 * `createdAtMs` and `expiresAtMs`.
 *
 * An id that a client wrote comes as a `ScopedId`, with the project of the client's key. Without the project it does not
 * compile, and what belongs to another project is as unknown as what never was.
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
  /** Null when the input file was deleted or has expired (only before the batch is in progress). */
  readonly input: StoredFile | null;
  /** Validations, or finalizations, that failed before this one. */
  readonly failureCount: number;
}

export interface ClaimedChunk {
  readonly lease: ChunkLease;
  readonly chunk: Chunk;
  readonly batch: Batch;
  readonly inputBlobKey: string;
  /** Runs that failed since the last segment. */
  readonly failureCount: number;
  /** What earlier leases wrote, oldest first. */
  readonly segments: readonly Segment[];
}

/** Chunks of one batch and model that somebody could claim. */
export interface RunnableChunks {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  readonly model: string;
  /** Of the chunk that a claim would get. */
  readonly nextLineCount: number;
  /** Lines of the batch, whatever their model, without an answer in the journal. */
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
  readonly work: readonly { readonly model: string; readonly lineCount: number }[];
}

/** A blob of journal records. It counts if, and only if, this row exists. */
export interface Segment {
  readonly blobKey: string;
  readonly bytes: number;
  /** Of the whole blob; null in segments of older versions. */
  readonly crc32: number | null;
}

/** What a new segment adds to its batch, counted once with it. */
export interface SegmentEntry extends Segment {
  readonly crc32: number;
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
  /** Rows of the files, without those of lines that never ran. */
  readonly counts: Pick<Counts, "completed" | "failed">;
  /** Segments that could not be read: what they added to the usage is not in the files. */
  readonly lostBlobKeys: readonly string[];
}

/** What is still to be done, in all batches that are not final. */
export interface OpenWork {
  readonly batchCounts: Readonly<Partial<Record<BatchStatus, number>>>;
  /** Lines without an answer in the journal, of batches that were validated. */
  readonly lineCount: number;
  /** When the first window of a batch that may still miss it ends; null when there is none. */
  readonly firstExpiresAtMs: number | null;
}

/** A chunk of a batch without open chunks that has lines without a readable record. */
export interface IncompleteChunk {
  readonly chunkNumber: number;
  /** Those of its segments that cannot be read. */
  readonly lostBlobKeys: readonly string[];
}

export interface Store extends DeliveryStore, UploadStore, IdempotencyStore, IntentStore {
  /**
   * Publishes a file whose blob is durable, with the receipt of its idempotency key, if it came with one. False when
   * the blob was given up: the file does not exist, and never will.
   */
  insertFileIfDeclared(file: StoredFile, receipt?: Receipt): Promise<boolean>;
  findFile(file: ScopedId<"file">): Promise<StoredFile | null>;
  /** Without files that have expired. Null when `after` names no file of the project. */
  listFiles(query: FileQuery): Promise<Page<StoredFile> | null>;
  /** The file is gone for clients at once; its bytes stay while an open batch reads them. */
  deleteFileIfPresent(file: ScopedId<"file">): Promise<boolean>;
  /** Deletes files whose time has come, as {@link deleteFileIfPresent} does: a page, and none when none are left. */
  deleteExpiredFiles(): Promise<FileId[]>;
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
   * Moves an open batch to `cancelling` and closes its chunks that nobody holds, the first page of them if there are
   * many: {@link closeAbandonedChunks} closes the others. False when the batch is not the project's, is final, or is
   * already stopping.
   */
  cancelBatchIfOpen(batch: ScopedId<"batch">): Promise<boolean>;

  /**
   * Leases the oldest batch that waits for validation, of the project whose name comes next after `formerProject`, or
   * of the first one: who names the project of the former claim lets them take turns.
   */
  claimBatchToValidate(claim: Claim, formerProject?: string): Promise<ClaimedBatch | null>;
  failBatchIfLeased(lease: BatchLease, failure: BatchFailure): Promise<boolean>;
  /** Moves `validating → in_progress` and creates the chunks. */
  startBatchIfLeased(lease: BatchLease, plan: BatchPlan): Promise<boolean>;

  /** For each batch and model of which somebody could claim a chunk. */
  listRunnable(): Promise<RunnableChunks[]>;
  /** Leases the first chunk of the batch and model that nobody holds, unless the batch is to stop or its window is over. */
  claimChunk(
    claim: Claim & { readonly batchId: BatchId; readonly model: string },
  ): Promise<ClaimedChunk | null>;
  /** Every batch with lines that are still to be sent, or that is to be validated. */
  listOpenBatches(): Promise<OpenBatch[]>;
  /** Adds a segment and its counts. */
  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean>;
  /** Takes segments that cannot be read out of the chunk, and their counts and usage out of the batch. */
  dropSegmentsIfLeased(lease: ChunkLease, blobKeys: readonly string[]): Promise<boolean>;
  /** Counts a run that failed. The lease is left to run out, so that the next one does not follow at once. */
  countChunkFailureIfLeased(lease: ChunkLease): Promise<boolean>;
  /** The same for a validation or a finalization. */
  countBatchFailureIfLeased(lease: BatchLease): Promise<boolean>;
  /**
   * Adds the last segment, if any, and ends the chunk: only when every line has its record, or the batch is
   * stopping. Its batch moves to `finalizing` when this was
   * its last open chunk and it is not stopping.
   */
  closeChunkIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null): Promise<boolean>;
  /** Gives the chunk back so that anyone may claim it at once. */
  releaseChunkIfLeased(lease: ChunkLease): Promise<boolean>;
  releaseBatchIfLeased(lease: BatchLease): Promise<boolean>;
  /** Extends the leases that are still held and tells which are not. */
  renewLeases(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Promise<Renewal>;

  /**
   * Marks batches whose window is over to stop, and closes their chunks that nobody holds, as {@link cancelBatchIfOpen}
   * does: a page of batches, and none when none are left.
   */
  stopExpiredBatches(): Promise<BatchId[]>;
  /** Closes the chunks of stopping batches that nobody holds any more. */
  closeAbandonedChunks(): Promise<number>;

  /** Leases a batch that is not final, is past validation or stopping, and has no open chunk. */
  claimBatchToFinalize(claim: Claim): Promise<ClaimedBatch | null>;
  /** The chunks of a batch with their segments, in the order of their numbers. */
  listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]>;
  /**
   * Opens chunks again, without the segments that cannot be read, and moves `finalizing → in_progress`. False also
   * when the batch is to stop.
   */
  reopenChunksIfLeased(lease: BatchLease, chunks: readonly IncompleteChunk[]): Promise<boolean>;
  /**
   * Publishes the files, moves the batch to the final status that its stop reason calls for (`completed`
   * without one), and records its announcements. False also when the blob of a file was given up.
   */
  finishBatchIfLeased(lease: BatchLease, result: BatchResult): Promise<boolean>;
  /**
   * Ends a batch whose results cannot be written: as its stop reason says, `failed` without one. It has no files, and
   * no counts and usage either.
   */
  endWithoutResultsIfLeased(lease: BatchLease, failure: BatchFailure): Promise<boolean>;
  /** Final batches that still have chunk rows, and so may have journal blobs. */
  listBatchesToTidy(limit: number): Promise<BatchId[]>;
  /** Drops the chunk and segment rows of a final batch. */
  forgetChunks(batchId: BatchId): Promise<void>;
  /** Rejects when the store cannot be used. */
  ping(): Promise<void>;
  close(): Promise<void>;
}
