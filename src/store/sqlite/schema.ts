/**
 * The tables of batches: chunks, segments and deliveries to webhooks. `migrations/sqlite` is generated from this file and
 * `file-schema.ts`.
 *
 * Every table counts its rows in `sequence`, because creation times repeat within a millisecond and lists, cursors
 * and journals need one order. A batch names its files without foreign keys, because it still shows the ids of
 * deleted files. A CHECK that names the rule forbids each impossible row.
 */

import type {
  BatchId,
  Fault,
  FileId,
  InputExtent,
  LineMark,
  StopReason,
  UntrustedId,
  Usage,
} from "../../batch/batch.ts";
import type { FailureGroup } from "../../batch/failures.ts";
import type { LatencyCounts } from "../../batch/latency.ts";
import type { StoredModelUsage } from "../../batch/model-usage.ts";
import type { Decimal } from "../../batch/price.ts";
import type { StoredSample } from "../../batch/progress.ts";
import type { BatchEndpoint, BatchStatus } from "../../contract/batch.ts";
import type { PauseReason, SourceLines } from "../../contract/batch-extension.ts";
import { count, holder, lease, sequence } from "./columns.ts";
import {
  cancelledBatchHasReasonAndTime,
  doneLinesWithinTotal,
  expiredBatchHasReason,
  finalizingBatchHasFinalizingTime,
  finalStatusHasFinalTime,
  hasLease,
  hasSource,
  holdsFailures,
  isAwaitedNoMore,
  isDeleted,
  isEnding,
  isEndingShown,
  isFinalBatch,
  isKnownStatus,
  isKnownStopReason,
  isListed,
  isOpenBatch,
  isOpenChunk,
  isOpenMerged,
  isOpenShown,
  isPausedByQuota,
  isToTidy,
  leaseHasOwnerAndExpiry,
  mayExpire,
  startedBatchHasStartTime,
  waitsForInput,
  waitsForValidation,
} from "./conditions.ts";
import {
  check,
  foreignKey,
  index,
  integer,
  sql,
  sqliteTable,
  text,
  uniqueIndex,
} from "./drizzle.ts";

export const batches = sqliteTable(
  "batches",
  {
    sequence: sequence(),
    id: text("id").$type<BatchId>().notNull(),
    project: text("project").notNull(),
    endpoint: text("endpoint").$type<BatchEndpoint>().notNull(),
    inputFileId: text("input_file_id").$type<UntrustedId<"file">>().notNull(),
    completionWindow: text("completion_window").notNull().default("24h"),
    status: text("status").$type<BatchStatus>().notNull(),
    stopReason: text("stop_reason").$type<StopReason>(),
    model: text("model"),
    faults: text("faults", { mode: "json" }).$type<readonly Fault[]>(),
    outputFileId: text("output_file_id").$type<FileId>(),
    errorFileId: text("error_file_id").$type<FileId>(),
    createdAtMs: integer("created_at_ms").notNull(),
    expiresAtMs: integer("expires_at_ms").notNull(),
    inProgressAtMs: integer("in_progress_at_ms"),
    finalizingAtMs: integer("finalizing_at_ms"),
    completedAtMs: integer("completed_at_ms"),
    failedAtMs: integer("failed_at_ms"),
    expiredAtMs: integer("expired_at_ms"),
    cancellingAtMs: integer("cancelling_at_ms"),
    cancelledAtMs: integer("cancelled_at_ms"),
    totalCount: count("total_count"),
    completedCount: count("completed_count"),
    failedCount: count("failed_count"),
    inputTokens: count("input_tokens"),
    cachedTokens: count("cached_tokens"),
    outputTokens: count("output_tokens"),
    reasoningTokens: count("reasoning_tokens"),
    totalTokens: count("total_tokens"),
    metadata: text("metadata", { mode: "json" }).$type<Readonly<Record<string, string>>>(),
    outputExpiresAfterSeconds: integer("output_expires_after_seconds"),
    priority: integer("priority").notNull().default(0),
    defaultModel: text("default_model"),
    traceparent: text("traceparent"),
    /** The flag is set until the batch is tidied: there may be chunk rows, and so journal blobs. */
    hasChunks: integer("has_chunks", { mode: "boolean" }).notNull().default(false),
    /** The count of failed validations, and later of failed finalizations. */
    failureCount: count("failure_count"),
    /** The time is null while the batch may send lines. */
    pausedAtMs: integer("paused_at_ms"),
    pauseReason: text("pause_reason").$type<PauseReason>(),
    /** The quota or the budget that was reached, as a text, where a quota is the reason of the pause. */
    pauseLimit: text("pause_limit"),
    /** The most that the batch may cost, as a decimal; null for no limit. */
    budget: text("budget").$type<Decimal>(),
    /** The estimate of its input tokens, made when its lines were checked. */
    estimatedTokens: count("estimated_tokens"),
    /** The failed lines by status and code; null while there are none. */
    failureGroups: text("failure_groups", { mode: "json" }).$type<readonly FailureGroup[]>(),
    /** How long its lines took; null while none has ended. */
    latencyCounts: text("latency_counts", { mode: "json" }).$type<LatencyCounts>(),
    /** The number of lines that were asked for as a sample. */
    sampleLineCount: integer("sample_line_count"),
    /** While the sample runs, only chunks with lower numbers may be claimed; null otherwise. */
    sampleChunkCount: integer("sample_chunk_count"),
    /** The batch whose lines are run again, which may be deleted since. */
    sourceBatchId: text("source_batch_id").$type<BatchId>(),
    sourceLines: text("source_lines").$type<SourceLines>(),
    /** It is set for a batch whose results are merged with those of its source, as are the files that it reads for them. */
    isMerged: integer("is_merged", { mode: "boolean" }).notNull().default(false),
    mergedInputFileId: text("merged_input_file_id").$type<UntrustedId<"file">>(),
    mergedOutputFileId: text("merged_output_file_id").$type<FileId>(),
    mergedErrorFileId: text("merged_error_file_id").$type<FileId>(),
    /** It is set until the input is made of lines of the source, which may still run. */
    isInputPending: integer("is_input_pending", { mode: "boolean" }),
    /** It is set while batches may wait for the lines of this one. */
    isAwaited: integer("is_awaited", { mode: "boolean" }),
    /** The template of the bodies, as JSON; null when the lines of the source run again as they are. */
    sourceTemplate: text("source_template"),
    /** It is set for a batch whose lines with equal bodies are sent once. */
    isDeduplicated: integer("is_deduplicated", { mode: "boolean" }),
    /** The number of lines that are not sent, and the first of them; null until the batch is validated. */
    duplicateCount: integer("duplicate_count"),
    firstDuplicateLine: integer("first_duplicate_line"),
    lineMarks: text("line_marks", { mode: "json" }).$type<readonly LineMark[]>(),
    /** The time is null while clients see the batch. */
    deletedAtMs: integer("deleted_at_ms"),
    ...lease(),
  },
  (batch) => [
    uniqueIndex("batches_id").on(batch.id),
    index("batches_listed").on(batch.project, batch.sequence),
    index("batches_shown").on(batch.project, batch.sequence).where(isListed),
    index("batches_to_validate").on(batch.project, batch.sequence).where(waitsForValidation),
    index("batches_to_derive").on(batch.project, batch.sequence).where(waitsForInput),
    index("batches_awaited_no_more").on(batch.project, batch.sequence).where(isAwaitedNoMore),
    index("batches_waiting_by_source").on(batch.sourceBatchId, batch.sequence).where(waitsForInput),
    index("batches_that_may_expire").on(batch.expiresAtMs).where(mayExpire),
    index("batches_ending").on(batch.sequence).where(isEnding),
    index("batches_shown_to_finalize").on(batch.project, batch.sequence).where(isEndingShown),
    index("batches_deleted").on(batch.sequence).where(isDeleted),
    index("batches_to_tidy").on(batch.sequence).where(isToTidy),
    index("batches_paused_by_quota").on(batch.sequence).where(isPausedByQuota),
    index("batches_open_by_input").on(batch.inputFileId).where(isOpenBatch),
    index("batches_open_by_project").on(batch.project, batch.inputFileId).where(isOpenBatch),
    index("batches_shown_open").on(batch.project).where(isOpenShown),
    index("batches_open_by_merged_output").on(batch.mergedOutputFileId).where(isOpenMerged),
    index("batches_open_by_merged_error").on(batch.mergedErrorFileId).where(isOpenMerged),
    index("batches_by_source").on(batch.sourceBatchId, batch.sequence).where(hasSource),
    check("status_is_known", isKnownStatus),
    check("stop_reason_is_known", isKnownStopReason),
    check("final_status_has_final_time", finalStatusHasFinalTime),
    check("started_batch_has_start_time", startedBatchHasStartTime),
    check("finalizing_batch_has_finalizing_time", finalizingBatchHasFinalizingTime),
    check("cancelled_batch_has_reason_and_time", cancelledBatchHasReasonAndTime),
    check("expired_batch_has_reason", expiredBatchHasReason),
    check("done_lines_within_total", doneLinesWithinTotal),
    check(
      "usage_not_negative",
      sql`min(input_tokens, cached_tokens, output_tokens, reasoning_tokens, total_tokens) >= 0`,
    ),
    check("batch_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
    check("final_batch_has_no_lease", sql`not (${isFinalBatch}) or lease_owner is null`),
  ],
);

export const chunks = sqliteTable(
  "chunks",
  {
    sequence: sequence(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      .references(() => batches.id),
    number: integer("number").notNull(),
    model: text("model").notNull(),
    lineCount: integer("line_count").notNull(),
    extents: text("extents", { mode: "json" }).$type<readonly InputExtent[]>().notNull(),
    closedAtMs: integer("closed_at_ms"),
    /** The count of failed runs since the last segment. */
    failureCount: count("failure_count"),
    ...lease(),
  },
  (chunk) => [
    uniqueIndex("chunks_batch_id_number").on(chunk.batchId, chunk.number),
    index("chunks_by_model").on(chunk.batchId, chunk.model, chunk.number),
    index("chunks_open_by_batch")
      .on(chunk.batchId, chunk.model, chunk.number, chunk.leaseExpiresAtMs, chunk.lineCount)
      .where(isOpenChunk),
    check("chunk_has_lines", sql`line_count > 0`),
    check("chunk_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
    check("closed_chunk_has_no_lease", sql`closed_at_ms is null or lease_owner is null`),
  ],
);

export const segments = sqliteTable(
  "segments",
  {
    sequence: sequence(),
    batchId: text("batch_id").$type<BatchId>().notNull(),
    chunkNumber: integer("chunk_number").notNull(),
    blobKey: text("blob_key").notNull(),
    bytes: integer("bytes").notNull(),
    /** The columns from here on are null in segments of versions before 0.2. */
    crc32: integer("crc32"),
    completedCount: integer("completed_count"),
    failedCount: integer("failed_count"),
    usage: text("usage", { mode: "json" }).$type<Usage>(),
    failureGroups: text("failure_groups", { mode: "json" }).$type<readonly FailureGroup[]>(),
    modelUsage: text("model_usage", { mode: "json" }).$type<readonly StoredModelUsage[]>(),
    latencyCounts: text("latency_counts", { mode: "json" }).$type<LatencyCounts>(),
  },
  (segment) => [
    uniqueIndex("segments_blob_key").on(segment.blobKey),
    index("segments_by_chunk").on(segment.batchId, segment.chunkNumber, segment.sequence),
    index("segments_with_failures")
      .on(segment.batchId, segment.chunkNumber, segment.sequence)
      .where(holdsFailures),
    foreignKey({
      name: "segment_belongs_to_chunk",
      columns: [segment.batchId, segment.chunkNumber],
      foreignColumns: [chunks.batchId, chunks.number],
    }),
    check("segment_bytes_not_negative", sql`bytes >= 0`),
  ],
);

/** What the counters of a running batch were at some moments. They are left out of `batches`, whose rows every segment changes. */
export const batchProgress = sqliteTable(
  "batch_progress",
  {
    sequence: sequence(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      // A replica of an older version deletes batches without knowing this table.
      .references(() => batches.id, { onDelete: "cascade" }),
    samples: text("samples", { mode: "json" }).$type<readonly StoredSample[]>().notNull(),
  },
  (progress) => [uniqueIndex("batch_progress_batch_id").on(progress.batchId)],
);

/** The outbox: events of final batches that are still to be delivered to webhooks. */
export const webhookDeliveries = sqliteTable(
  "deliveries",
  {
    sequence: sequence(),
    webhookId: text("webhook_id").notNull(),
    eventId: text("event_id").notNull(),
    webhook: text("webhook").notNull(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      .references(() => batches.id),
    /** The project of the batch. */
    project: text("project").notNull().default(""),
    status: text("status").$type<BatchStatus>().notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
    nextAttemptAtMs: integer("next_attempt_at_ms").notNull(),
    attemptCount: count("attempt_count"),
    ...holder(),
  },
  (delivery) => [
    uniqueIndex("deliveries_webhook_id").on(delivery.webhookId),
    index("deliveries_by_batch").on(delivery.batchId),
    index("deliveries_by_webhook").on(
      delivery.webhook,
      delivery.nextAttemptAtMs,
      delivery.sequence,
    ),
    index("deliveries_by_project").on(
      delivery.webhook,
      delivery.project,
      delivery.nextAttemptAtMs,
      delivery.sequence,
    ),
    index("deliveries_claimed").on(delivery.webhook, delivery.leaseExpiresAtMs).where(hasLease),
    check("delivery_tells_final_status", isFinalBatch),
    check("delivery_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
  ],
);
