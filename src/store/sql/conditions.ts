/**
 * Conditions on rows that both databases take in the same words, for the schema (CHECKs, partial indexes) and for queries.
 * A partial index is used only where a query repeats its condition without parameters, on SQLite word for word. Each
 * condition is therefore written once, as plain text, from the one table of moves. `conditions.ts` of a database adds what
 * it says in its own words.
 */

import type { StopReason } from "../../batch/batch.ts";
import { FINAL_STATUSES, isFinal, statusesBefore } from "../../batch/status.ts";
import { BATCH_STATUSES, type BatchStatus } from "../../contract/batch.ts";
import { KEPT_DELIVERY_STATUSES, type KeptDeliveryStatus } from "../../contract/delivery.ts";
import { UPLOAD_STATUSES } from "../../contract/upload.ts";
import { LISTS_WITH_TOMBSTONES } from "../tombstones.ts";
import type { UploadStatus } from "../uploads.ts";
import { type SQL, sql } from "./drizzle.ts";

const STOP_REASONS: readonly StopReason[] = ["cancelled", "expired"];

const listed = (names: readonly string[]): SQL =>
  sql.raw(`(${names.map((name) => `'${name}'`).join(", ")})`);
export const statusIn = (...statuses: readonly BatchStatus[]): SQL =>
  sql`status in ${listed(statuses)}`;
const uploadStatusIn = (...statuses: readonly UploadStatus[]): SQL =>
  sql`status in ${listed(statuses)}`;
const deliveryStatusIn = (...statuses: readonly KeptDeliveryStatus[]): SQL =>
  sql`status in ${listed(statuses)}`;

export const isFinalBatch = statusIn(...FINAL_STATUSES);
export const isOpenBatch = statusIn(...BATCH_STATUSES.filter((status) => !isFinal(status)));
export const isValidating = sql`${statusIn("validating")} and stop_reason is null`;
/** Before the batch has started, its chunks are a draft: see `validation.ts`. */
export const hasStarted = sql.raw("in_progress_at_ms is not null");
export const mayExpire = sql`${statusIn(...statusesBefore("expired"))} and stop_reason is null`;
export const isNotPaused = sql.raw("paused_at_ms is null");
export const isPausedByQuota = sql.raw("pause_limit is not null");
/** The pause of a quota ends by itself, which a client that pauses the batch does not want. */
export const mayBePaused = sql`(${isNotPaused} or ${isPausedByQuota})`;
/** The lines of such a batch may go out, once it has started. */
export const maySend = sql`${mayExpire} and ${isNotPaused}`;
/** The finalizer claims such a batch once none of its chunks is open. */
export const isEnding = sql`${isOpenBatch} and (stop_reason is not null or ${statusIn("finalizing")})`;
/** The batch runs lines of another one again. */
export const hasSource = sql.raw("source_batch_id is not null");
/** Only the lines of a sample are being sent. */
export const isSampling = sql.raw("sample_chunk_count is not null");
/** No batch has so many chunks. */
const MAX_CHUNKS = 2_147_483_647;
/** The number of chunks that may be claimed: while a sample runs, only its own. */
export const claimableChunks = sql.raw(`coalesce(sample_chunk_count, ${MAX_CHUNKS})`);
/** The number of lines that are still to be sent. Lines with the body of an earlier one never are. */
export const linesToSend = sql.raw(
  "(total_count - coalesce(duplicate_count, 0) - completed_count - failed_count)",
);
export const isOpenChunk = sql.raw("closed_at_ms is null");
/** Clients see such a file or batch. */
export const isListed = sql.raw("deleted_at_ms is null");
/** Such a file or batch is gone for clients, and its rows and bytes are about to be. */
export const isDeleted = sql.raw("deleted_at_ms is not null");
export const isOpenShown = sql`${isOpenBatch} and ${isListed}`;
export const isEndingShown = sql`${isEnding} and ${isListed}`;
export const isFileThatMayExpire = sql`${isListed} and expires_at_ms is not null`;
export const isPendingUpload = uploadStatusIn("pending");
/** The delivery has not ended. */
export const isOpenDelivery = deliveryStatusIn("pending");
/** The results are there to be delivered, now or at the next attempt. */
export const isDueDelivery = sql.raw("next_attempt_at_ms is not null");
export const waitsForItsBatch = sql`${isOpenDelivery} and next_attempt_at_ms is null`;
export const isKeyInProgress = sql.raw("answer is null");

/** The source of the row `waiting` sends no lines any more. Only a batch of the same project is a source. */
export const sourceHasEnded = sql`not exists (
  select 1 from batches as source
  where source.id = waiting.source_batch_id and source.project = waiting.project
    and ${isOpenBatch} and ${isListed})`;

/** The chunk has the reservation, which ends with the lease of its worker. */
export const isReserved = sql.raw(
  `chunks.batch_id = reservations.batch_id and chunks.number = reservations.chunk_number
    and chunks.lease_epoch = reservations.epoch and chunks.lease_owner is not null`,
);
export const isReservationInForce = sql`exists (select 1 from chunks where ${isReserved})`;
/** Matches while the data of a project is being deleted. */
export const isDeleting = (project: string): SQL =>
  sql`exists (select 1 from projects where name = ${project} and deleted_at_ms is not null)`;
/** Matches the usage of a project in a month such as `2026-01`. */
export const isUsageOf = (project: string, month: string): SQL =>
  sql`project = ${project} and day between ${`${month}-01`} and ${`${month}-31`}`;

export const hasLease = sql`lease_expires_at_ms is not null`;
export const leaseHasOwnerAndExpiry = sql`(lease_owner is null) = (lease_expires_at_ms is null)`;
export const isKnownStatus = statusIn(...BATCH_STATUSES);
export const isKnownStopReason = sql`stop_reason is null or stop_reason in ${listed(STOP_REASONS)}`;
export const finalStatusHasFinalTime = sql.join(
  FINAL_STATUSES.map((status) => {
    const time = sql.raw(`${status}_at_ms`);
    return sql`(${statusIn(status)}) = (${time} is not null)`;
  }),
  sql` and `,
);
export const startedBatchHasStartTime = sql`not (${statusIn("in_progress", "finalizing", "completed")}) or in_progress_at_ms is not null`;
export const finalizingBatchHasFinalizingTime = sql`not (${statusIn("finalizing", "completed")}) or finalizing_at_ms is not null`;
export const isKnownUploadStatus = uploadStatusIn(...UPLOAD_STATUSES);
export const completedUploadHasFile = sql`(${uploadStatusIn("completed")}) = (file_id is not null)`;
export const isKnownDeliveryStatus = deliveryStatusIn(...KEPT_DELIVERY_STATUSES);
export const deliveredHasAddress = sql`(${deliveryStatusIn("delivered")}) = (address is not null)`;
export const failedDeliveryHasError = sql`not (${deliveryStatusIn("failed")}) or error is not null`;
export const keyIsInProgressOrAnswered = sql`(${isKeyInProgress}) = (lease_owner is not null) and (answer is null) = (fingerprint is null)`;
export const isKnownList = sql`list in ${listed(LISTS_WITH_TOMBSTONES)}`;
