/** The part of the store for chunks and their journals, from the claim of a chunk to its end. */
import type { Batch, BatchId, Chunk, Usage } from "../batch/batch.ts";
import type { FailureGroup } from "../batch/failures.ts";
import type { LatencyCounts } from "../batch/latency.ts";
import type { ModelUsage } from "../batch/model-usage.ts";
import type { Claim } from "./claim.ts";
import type { ChunkLease } from "./leases.ts";

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

/** How many chunks of one batch and model a worker could take on. */
export interface WantedChunks {
  readonly batchId: BatchId;
  readonly model: string;
  readonly count: number;
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
  /** The failed lines by status and code. */
  readonly failures: readonly FailureGroup[];
  /** The same usage by model and price, one entry for each. */
  readonly modelUsage: readonly ModelUsage[];
  /** How long the lines took that were sent; null when none was. */
  readonly latencyCounts: LatencyCounts | null;
}

/** The part of the {@link Store} port for chunks. */
export interface ChunkStore {
  /** Lists each batch and model with a chunk that a worker could claim. */
  listRunnable(): Promise<RunnableChunks[]>;
  /**
   * Leases the first chunks of each wanted batch and model without a holder. A batch that is to stop, is paused, or whose
   * window is over, gives none. Each batch and model may be wanted once.
   */
  claimChunks(claim: Claim & { readonly wanted: readonly WantedChunks[] }): Promise<ClaimedChunk[]>;
  /** Adds a segment and its counts. */
  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean>;
  /** Takes unreadable segments out of the chunk, and their counts and usage out of the batch. */
  removeSegmentsIfLeased(lease: ChunkLease, blobKeys: readonly string[]): Promise<boolean>;
  /**
   * Adds the last segment, if any, and ends the chunk. It does so only when every line has its record, or the batch
   * is stopping. Its batch moves to `finalizing` when this was its last open chunk and the batch is not stopping.
   */
  closeChunkIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null): Promise<boolean>;
}
