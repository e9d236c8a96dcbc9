/** The part of the store for the validation of a batch, which either fails the batch or creates its chunks. */
import type { Duplicates, Fault, LineMark } from "../batch/batch.ts";
import type { PlannedChunk } from "../batch/plan.ts";
import type { InputSummary } from "../batch/run-summary.ts";
import type { Claim } from "./claim.ts";
import type { BatchLease, ClaimedBatch } from "./leases.ts";
import type { ProjectTurn } from "./project-turns.ts";
import type { LineQuotas } from "./quotas.ts";
import type { Announcement } from "./webhook-deliveries.ts";

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
  /** The estimate of the input tokens of all lines. */
  readonly estimatedTokens: number;
  readonly chunks: readonly PlannedChunk[];
  /** The number of chunks that run before the batch pauses; null when it does not pause by itself. */
  readonly sampleChunkCount: number | null;
  readonly lineMarks: readonly LineMark[];
  readonly duplicates: Duplicates;
  /** What the run record says of the input. */
  readonly summary?: InputSummary;
}

const PAGE_CHUNKS = 500;
const PAGE_EXTENTS = 16 * 1024;

/** Pages of chunks that are written at once: some 10 ms. The event loop takes a turn between two pages. */
export function* pagesOf(planned: readonly PlannedChunk[]): Generator<PlannedChunk[]> {
  let page: PlannedChunk[] = [];
  let extentCount = 0;
  for (const chunk of planned) {
    page.push(chunk);
    extentCount += chunk.extents.length;
    if (page.length < PAGE_CHUNKS && extentCount < PAGE_EXTENTS) continue;
    yield page;
    page = [];
    extentCount = 0;
  }
  if (page.length > 0) yield page;
}

/** The part of the {@link Store} port for validation. */
export interface ValidationStore {
  /**
   * Leases the oldest batch that waits for validation, of the project whose turn it is. Without a turn it is the first
   * project.
   */
  claimBatchToValidate(claim: Claim, turn?: ProjectTurn): Promise<ClaimedBatch | null>;
  failBatchIfLeased(lease: BatchLease, failure: BatchFailure): Promise<boolean>;
  /**
   * Moves `validating → in_progress` and creates the chunks. Rejects with `QuotaExceeded` when its project would have more
   * lines to do than it may.
   */
  startBatchIfLeased(lease: BatchLease, plan: BatchPlan, quotas?: LineQuotas): Promise<boolean>;
}
