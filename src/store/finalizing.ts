/** The part of the store for the end of a batch: from its last closed chunk to its files and its tidying. */
import type { Batch, BatchId, Chunk, Counts, StopReason, StoredFile } from "../batch/batch.ts";
import type { FailureGroup } from "../batch/failures.ts";
import type { ResultSummary } from "../batch/run-summary.ts";
import type { Segment } from "./chunks.ts";
import type { Claim } from "./claim.ts";
import type { BatchLease, ClaimedBatch } from "./leases.ts";
import type { ProjectTurn } from "./project-turns.ts";
import type { BatchFailure } from "./validation.ts";
import type { Announcement } from "./webhook-deliveries.ts";

export interface ChunkJournal {
  readonly chunk: Chunk;
  readonly segments: readonly Segment[];
}

/**
 * The part of a journal that a reader wants: every chunk with all its segments, or only the segments that may have records of
 * completed or of failed lines. Segments of older versions are without counts and may have any.
 */
export type JournalPart = "all" | "completed" | "failed";

/** The chunks at which a reader begins in the middle of a batch. */
export interface JournalStart {
  /** The chunks of the sample, and of each model the last other chunk that begins at the line or before it. */
  readonly journals: readonly ChunkJournal[];
  /** The number after which all other chunks begin behind the line, in the order of their first lines. */
  readonly last: number;
}

export interface JournalPage {
  /** The number of the chunk after which the page begins. */
  readonly after: number;
  readonly limit: number;
  /** Chunks without such a segment are left out. */
  readonly part: JournalPart;
}

/** The files with which a batch ends; null in place of an empty file. */
export interface ResultFiles {
  readonly output: StoredFile | null;
  readonly error: StoredFile | null;
}

export interface BatchResult extends ResultFiles {
  /** The blobs that were declared for a file that has no row. Their intents end with the batch. */
  readonly unusedBlobKeys: readonly string[];
  readonly announcements: readonly Announcement[];
  /** The rows of the files, without the rows of lines that never ran. */
  readonly counts: Pick<Counts, "completed" | "failed">;
  /** The failures of lines that were not sent, which the journal does not have. */
  readonly failures: readonly FailureGroup[];
  /** The segments that could not be read. The files do not have their part of the usage. */
  readonly lostBlobKeys: readonly string[];
  /** What the run record says of the results. */
  readonly summary?: ResultSummary;
}

/** A chunk with lines that have no readable record, in a batch without open chunks. */
export interface IncompleteChunk {
  readonly chunkNumber: number;
  /** The keys of its segments that cannot be read. */
  readonly lostBlobKeys: readonly string[];
}

/** Returns the final status that a stop reason calls for, with its time. A batch without one gets the status `unstopped`. */
export function endingOf<At>(
  stopReason: StopReason | null,
  unstopped: "completed" | "failed",
  at: At,
) {
  switch (stopReason) {
    case null:
      return unstopped === "completed"
        ? ({ status: "completed", completedAtMs: at } as const)
        : ({ status: "failed", failedAtMs: at } as const);
    case "cancelled":
      return { status: "cancelled", cancelledAtMs: at } as const;
    case "expired":
      return { status: "expired", expiredAtMs: at } as const;
  }
}

/** The columns of a batch that ends without results. */
export const NOTHING_DONE = {
  failureGroups: null,
  completedCount: 0,
  failedCount: 0,
  inputTokens: 0,
  cachedTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0,
  totalTokens: 0,
} as const;

/** The part of the {@link Store} port for the end of a batch. */
export interface FinalizingStore {
  /**
   * Leases the oldest batch that is not final, is past validation or stopping, and has no open chunk, of the project whose turn
   * it is.
   */
  claimBatchToFinalize(claim: Claim, turn?: ProjectTurn): Promise<ClaimedBatch | null>;
  /** Lists the chunks of a batch with their segments, in the order of their numbers. */
  listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]>;
  /** Finds where to begin to read a started batch from `line` on. */
  findJournalStart(
    batch: Pick<Batch, "id" | "sample">,
    from: { readonly line: number; readonly part: JournalPart },
  ): Promise<JournalStart>;
  /** Lists chunks of a started batch with their segments, in the order of their numbers. */
  listJournalPage(batchId: BatchId, page: JournalPage): Promise<ChunkJournal[]>;
  /**
   * Opens chunks again, without their unreadable segments, and moves `finalizing → in_progress`. Returns false also
   * when the batch is to stop.
   */
  reopenChunksIfLeased(lease: BatchLease, chunks: readonly IncompleteChunk[]): Promise<boolean>;
  /**
   * Publishes the files, moves the batch to the final status that its stop reason calls for (`completed` without
   * one), and records its announcements. Returns false also when the intent of a file was revoked.
   */
  finishBatchIfLeased(lease: BatchLease, result: BatchResult): Promise<boolean>;
  /**
   * Ends a batch whose results cannot be written. Its status follows its stop reason, and is `failed` without one.
   * The batch has no files, counts or usage.
   */
  endWithoutResultsIfLeased(lease: BatchLease, failure: BatchFailure): Promise<boolean>;
  /**
   * Lists final batches that still have chunk rows, and so may have journal blobs. Where a failover may take back the
   * commit that ended a batch, it is listed a minute later. The list begins behind `after`.
   */
  listBatchesToTidy(limit: number, after?: BatchId): Promise<BatchId[]>;
  /** Deletes the chunk and segment rows of a final batch. */
  forgetChunks(batchId: BatchId): Promise<void>;
}
