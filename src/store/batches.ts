/** The part of the store for batches as clients see them: creation, lists, cancelling, and the end of windows. */
import type { Batch, BatchId, ScopedId, UntrustedId } from "../batch/batch.ts";
import type { BatchEndpoint, BatchStatus } from "../contract/batch.ts";
import type { PauseReason } from "../contract/batch-extension.ts";
import type { NewDelivery } from "./deliveries.ts";
import type { Receipt } from "./idempotency.ts";
import type { Page } from "./page.ts";
import type { BatchQuotas } from "./quotas.ts";

export interface BatchQuery {
  readonly project: string;
  readonly limit: number;
  readonly after: UntrustedId<"batch"> | null;
  /** Lists only the batches that match; all of them when left out. */
  readonly filter?: BatchFilter | undefined;
}

/** What a batch must be to stand in a list. A null matches every batch. */
export interface BatchFilter {
  readonly status: BatchStatus | null;
  readonly endpoint: BatchEndpoint | null;
  readonly model: string | null;
  readonly createdAtOrAfterMs: number | null;
  /** The pairs that the metadata has, among others. */
  readonly metadata: Readonly<Record<string, string>>;
  /** A text in its id, in a value of its metadata, or in the name of its input file. */
  readonly search: string | null;
}

/**
 * Returns the text to look for, in small letters. Only the letters A to Z are folded, because databases do not agree about
 * others.
 */
export const searchedText = (search: string): string =>
  search.replaceAll(/[A-Z]+/g, (letters) => letters.toLowerCase());

/** The characters that stand in metadata for what PostgreSQL cannot read: the last 256 of Unicode, which nothing uses. */
const UNREADABLE = /[\u{10ff00}-\u{10ffff}]/u;

/** Whether a batch may match: PostgreSQL finds no NUL, and no unreadable character. */
export const isFindable = ({ model, metadata, search }: BatchFilter): boolean => {
  const sought = [model ?? "", search ?? "", ...Object.entries(metadata).flat()].join("");
  return !sought.includes("\0") && !UNREADABLE.test(sought);
};

/**
 * The most batches that one statement of a filtered list looks at. A list may have to look at all batches of a project, so it
 * does so in steps, each of some milliseconds.
 */
export const FILTER_STEP = 1_000;

/** The fields of a batch that a client may change; those that are missing stay. */
export type BatchChange = Partial<Pick<Batch, "budget" | "metadata" | "priority">>;

/** A batch with lines that are still to be sent, and their number. */
export interface OpenBatch {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  /** The lines of a batch are not known before it is validated. */
  readonly isValidated: boolean;
  /** The number of its chunks that workers hold. */
  readonly heldCount: number;
  /** The number of its chunks whose workers are gone. Their leases have not run out yet. */
  readonly lostCount: number;
  readonly remainingLineCount: number;
  /** The lines of its open chunks, those with an answer included. */
  readonly work: readonly { readonly model: string; readonly lineCount: number }[];
}

/** The work that is left, in all batches that are not final. */
export interface OpenWork {
  readonly batchCounts: Readonly<Partial<Record<BatchStatus, number>>>;
  /** The number of lines without an answer in the journal, over all validated batches that are not paused. */
  readonly lineCount: number;
  /** The first end of a window that a batch may still miss; null when there is none. */
  readonly firstExpiresAtMs: number | null;
}

export interface OpenWorkRow {
  readonly status: BatchStatus;
  readonly batchCount: number;
  readonly lineCount: number;
  readonly firstExpiresAtMs: number | null;
}

/** Adds up rows, of which each status may have several. */
export function openWorkIn(rows: readonly OpenWorkRow[]): OpenWork {
  const ends = rows.map((row) => row.firstExpiresAtMs).filter((atMs) => atMs !== null);
  const batchCounts: Partial<Record<BatchStatus, number>> = {};
  for (const { status, batchCount } of rows) {
    batchCounts[status] = (batchCounts[status] ?? 0) + batchCount;
  }
  return {
    batchCounts,
    lineCount: rows.reduce((sum, row) => sum + row.lineCount, 0),
    firstExpiresAtMs: ends.length === 0 ? null : Math.min(...ends),
  };
}

/** What is stored in the commit of a new batch. */
export interface BatchInsertion {
  readonly receipt?: Receipt | undefined;
  readonly quotas?: BatchQuotas | undefined;
  /** The deliveries of its results, which wait for its end. */
  readonly deliveries?: readonly NewDelivery[] | undefined;
}

/** The part of the {@link Store} port for batches. */
export interface BatchStore {
  /**
   * Stores a batch, with its deliveries and the receipt of its idempotency key. Rejects with `QuotaExceeded` when the
   * project has as many open batches as it may, or results have taken it beyond a quota.
   */
  insertBatch(batch: Batch, insertion?: BatchInsertion): Promise<void>;
  findBatch(batch: ScopedId<"batch">): Promise<Batch | null>;
  /** Returns null when `after` names no batch that the project has, or had a day ago. */
  listBatches(query: BatchQuery): Promise<Page<Batch> | null>;
  countOpenWork(): Promise<OpenWork>;
  /** Lists every batch that is to be validated or has lines still to be sent, without the paused ones. */
  listOpenBatches(): Promise<OpenBatch[]>;
  /**
   * Moves an open batch to `cancelling` and closes its chunks without a holder. A batch with many such chunks has its
   * first page closed, and {@link closeUnheldChunks} closes the others. Returns false when the batch belongs to
   * another project, is final, or is already stopping.
   */
  cancelBatchIfOpen(batch: ScopedId<"batch">): Promise<boolean>;
  /**
   * Pauses a batch that may still send lines, also one that a quota has paused. Returns false when the batch belongs to
   * another project, has no lines to send any more, or is paused already.
   */
  pauseBatchIfOpen(batch: ScopedId<"batch">, reason: PauseReason): Promise<boolean>;
  /** Ends the pause, for this reason or any, of a batch that may still send lines. Returns false when there is no such pause. */
  resumeBatchIfPaused(batch: ScopedId<"batch">, reason?: PauseReason): Promise<boolean>;
  /**
   * Changes what a client may change. A final batch, or one that is to stop, keeps its budget and its priority. Returns false
   * when it keeps one that `change` has, and when the batch belongs to another project.
   */
  updateBatchIfAllowed(batch: ScopedId<"batch">, change: BatchChange): Promise<boolean>;
  /**
   * Marks batches whose window is over to stop, and closes their free chunks as {@link cancelBatchIfOpen} does. A
   * call handles one page of batches, and returns none when none are left.
   */
  stopExpiredBatches(): Promise<BatchId[]>;
  /** Closes the chunks of stopping batches that have no holder any more. */
  closeUnheldChunks(): Promise<number>;
}
