/**
 * The life of a batch as a table. Every change of status is a guarded UPDATE that starts from
 * `statusesBefore(to)`; the database repeats the rule that a final status has its time.
 *
 * `expired` is reached from `in_progress` without `finalizing`, and a cancelled batch never shows
 * `finalizing` either: both are written by the same finalizer, but only a batch whose last line is
 * done says so. A batch that is already finalizing has its answers and is left to complete. It goes back to
 * `in_progress` only when some of them turn out to be unreadable, and to `failed` only when its results can never
 * be written.
 */
import { BATCH_STATUSES, type BatchStatus } from "../contract/batch.ts";

const MOVES = {
  validating: ["in_progress", "failed", "cancelling", "expired"],
  in_progress: ["finalizing", "cancelling", "expired"],
  finalizing: ["completed", "cancelling", "in_progress", "failed"],
  cancelling: ["cancelled"],
  completed: [],
  failed: [],
  expired: [],
  cancelled: [],
} as const satisfies Record<BatchStatus, readonly BatchStatus[]>;

export const canMove = (from: BatchStatus, to: BatchStatus): boolean =>
  (MOVES[from] as readonly BatchStatus[]).includes(to);

/** The statuses a move to `to` may start from. */
export const statusesBefore = (to: BatchStatus): BatchStatus[] =>
  BATCH_STATUSES.filter((from) => canMove(from, to));

export const isFinal = (status: BatchStatus): boolean => MOVES[status].length === 0;

export const FINAL_STATUSES: readonly BatchStatus[] = BATCH_STATUSES.filter(isFinal);
