/** Conditions that PostgreSQL says in its own words. */
import {
  claimableChunks,
  isDeleted,
  isFinalBatch,
  isOpenBatch,
  isPendingUpload,
  isValidating,
  statusIn,
} from "../sql/conditions.ts";
import { type SQL, type SQLWrapper, sql } from "./drizzle.ts";

export * from "../sql/conditions.ts";

/** The input of the batch is still to be made of lines of another one. */
export const waitsForInput = sql`${isValidating} and ${sql.raw("is_input_pending")}`;
export const waitsForValidation = sql`${isValidating} and ${sql.raw("is_input_pending is not true")}`;
/** Batches may wait for the lines of this one, which sends none any more. */
export const isAwaitedNoMore = sql`${sql.raw("is_awaited")} and (${isFinalBatch} or ${isDeleted})`;
export const isToTidy = sql`${isFinalBatch} and has_chunks`;
/** Such a batch reads result files of its source until it ends. */
export const isOpenMerged = sql`${isOpenBatch} and ${sql.raw("is_merged")}`;
/** The segment has records of failed lines. */
export const holdsFailures = sql.raw("failed_count > 0");
export const holdsAnswers = sql.raw("completed_count > 0");
/** The upload may still have parts, and blobs for them, that nothing needs any more. */
export const isUploadToTidy = sql`not (${isPendingUpload}) and has_parts`;
export const cancelledBatchHasReasonAndTime = sql`(${statusIn("cancelling", "cancelled")}) = (stop_reason is not distinct from 'cancelled') and (stop_reason is not distinct from 'cancelled') = (cancelling_at_ms is not null)`;
export const expiredBatchHasReason = sql`not (${statusIn("expired")}) or stop_reason is not distinct from 'expired'`;
export const doneLinesWithinTotal = sql`least(completed_count, failed_count) >= 0 and completed_count + failed_count <= total_count`;

/**
 * Holds for the rows whose numbers `selected` returns, which runs once. With `in` it is a part of a join: where the statistics
 * know few rows of a table, PostgreSQL selects anew for each row, so 20,000 rows take minutes, and `limit` limits nothing.
 */
export const isSelected = (selected: SQLWrapper): SQL => sql`sequence = any(array(${selected}))`;

/**
 * The batch of an id, as the table `batches`. The offset keeps other conditions out of the lookup. Without statistics, PostgreSQL
 * would read all open batches for them.
 */
export const batchOf = (id: SQL): SQL =>
  sql`lateral (select *, ${claimableChunks} as claimable_chunks from batches where id = ${id} offset 0) as batches`;
