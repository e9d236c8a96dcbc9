/**
 * The statuses of a batch and the moves between them, as a table. Every change of status is a guarded UPDATE that
 * starts from `statusesBefore(to)`. A constraint of the database also demands that a final status has its time.
 *
 * A batch becomes `expired` straight from `in_progress`, and `cancelled` straight from `cancelling`. One finalizer
 * writes all results, but only a batch whose last line is done has the status `finalizing`. A finalizing batch has all
 * its answers, so it does not expire. It moves back to `in_progress` only when some answers turn out to be unreadable.
 * It moves to `failed` only when its results can never be written.
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

/** Returns the statuses from which a batch may move to `to`. */
export const statusesBefore = (to: BatchStatus): BatchStatus[] =>
  BATCH_STATUSES.filter((from) => canMove(from, to));

export const FINAL_STATUSES: readonly BatchStatus[] = BATCH_STATUSES.filter(
  (status) => MOVES[status].length === 0,
);

/** A status that another server has made up is not final. */
export const isFinal = (status: BatchStatus): boolean => FINAL_STATUSES.includes(status);

/** A part of the life of a batch that goes without the scheduler. */
export type SingleStep = "validate" | "finalize";

/** Returns the step that a batch of this status waits for, or is in. */
export const stepOf = (status: BatchStatus): SingleStep | null => {
  if (status === "validating") return "validate";
  return status === "finalizing" ? "finalize" : null;
};

/** Whether lines may still go out, unless the batch is to stop: such a batch expires. */
export const maySendLines = (status: BatchStatus): boolean => canMove(status, "expired");
