/**
 * The tables of batches: chunks, segments and deliveries to webhooks. `migrations/postgres` is generated from this
 * file and `file-schema.ts`.
 *
 * Every table counts its rows in `sequence`, because creation times repeat within a millisecond and lists,
 * cursors and journals need one order. A batch names its files without foreign keys, because it shows the ids of deleted
 * files too. Every rule that a row must never break is a CHECK with the name of the rule.
 *
 * Moments are milliseconds since 1970, as everywhere in batchd. JSON is stored as `json`, which keeps the text of a
 * client as it is: `jsonb` refuses NUL characters and sorts keys.
 *
 * A migration has PostgreSQL look at the tables whose rows stay for long after one change for a thousand rows. After one for ten,
 * as by default, it would take few of a million batches to be open, and go through 30,000 for each statement about one of them.
 */

import type {
  BatchId,
  Fault,
  FileId,
  InputExtent,
  LineMark,
  StopReason,
  UntrustedId,
} from "../../batch/batch.ts";
import type { FailureGroup } from "../../batch/failures.ts";
import type { CommonFailure, Waiting } from "../../batch/forecast.ts";
import type { StoredModelUsage } from "../../batch/model-usage.ts";
import type { Decimal } from "../../batch/price.ts";
import type { StoredSample } from "../../batch/progress.ts";
import type { BatchEndpoint, BatchStatus } from "../../contract/batch.ts";
import type { PauseReason, SourceLines } from "../../contract/batch-extension.ts";
import { big, count, holder, lease, results, sequence, text } from "./columns.ts";
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
  isValidating,
  leaseHasOwnerAndExpiry,
  mayExpire,
  startedBatchHasStartTime,
  waitsForInput,
  waitsForValidation,
} from "./conditions.ts";
import {
  boolean,
  check,
  foreignKey,
  index,
  integer,
  json,
  pgTable,
  sql,
  unique,
} from "./drizzle.ts";

export const batches = pgTable(
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
    faults: json("faults").$type<readonly Fault[]>(),
    outputFileId: text("output_file_id").$type<FileId>(),
    errorFileId: text("error_file_id").$type<FileId>(),
    createdAtMs: big("created_at_ms").notNull(),
    expiresAtMs: big("expires_at_ms").notNull(),
    inProgressAtMs: big("in_progress_at_ms"),
    finalizingAtMs: big("finalizing_at_ms"),
    completedAtMs: big("completed_at_ms"),
    failedAtMs: big("failed_at_ms"),
    expiredAtMs: big("expired_at_ms"),
    cancellingAtMs: big("cancelling_at_ms"),
    cancelledAtMs: big("cancelled_at_ms"),
    totalCount: count("total_count"),
    ...results(),
    metadata: json("metadata").$type<Readonly<Record<string, string>>>(),
    outputExpiresAfterSeconds: big("output_expires_after_seconds"),
    priority: integer("priority").notNull().default(0),
    defaultModel: text("default_model"),
    traceparent: text("traceparent"),
    /** The flag is set until the batch is tidied: there may be chunk rows, and so journal blobs. */
    hasChunks: boolean("has_chunks").notNull().default(false),
    /** The number of failed validations, and later of failed finalizations. */
    failureCount: count("failure_count"),
    /** The time is null while the batch may send lines. */
    pausedAtMs: big("paused_at_ms"),
    pauseReason: text("pause_reason").$type<PauseReason>(),
    /** The quota or the budget that was reached, as a text, where a quota is the reason of the pause. */
    pauseLimit: text("pause_limit"),
    /** The most that the batch may cost, as a decimal; null for no limit. */
    budget: text("budget").$type<Decimal>(),
    /** The estimate of its input tokens, made when its lines were checked. */
    estimatedTokens: count("estimated_tokens"),
    /** The failed lines by status and code; null while there are none. */
    failureGroups: json("failure_groups").$type<readonly FailureGroup[]>(),
    /** How long its lines took; null while none has ended. */
    latencyCounts: big("latency_counts").array(),
    /** The number of lines that were asked for as a sample. */
    sampleLineCount: integer("sample_line_count"),
    /** While the sample runs, only chunks with lower numbers may be claimed; null otherwise. */
    sampleChunkCount: integer("sample_chunk_count"),
    /** The batch whose lines are run again, which may be deleted since. */
    sourceBatchId: text("source_batch_id").$type<BatchId>(),
    sourceLines: text("source_lines").$type<SourceLines>(),
    /** It is set for a batch whose results are merged with those of its source, as are the files that it reads for them. */
    isMerged: boolean("is_merged").notNull().default(false),
    mergedInputFileId: text("merged_input_file_id").$type<UntrustedId<"file">>(),
    mergedOutputFileId: text("merged_output_file_id").$type<FileId>(),
    mergedErrorFileId: text("merged_error_file_id").$type<FileId>(),
    /** It is set until the input is made of lines of the source, which may still run. */
    isInputPending: boolean("is_input_pending"),
    /** It is set while batches may wait for the lines of this one. */
    isAwaited: boolean("is_awaited"),
    /** The template of the bodies, as JSON; null when the lines of the source run again as they are. */
    sourceTemplate: text("source_template"),
    /** It is set for a batch whose lines with equal bodies are sent once. */
    isDeduplicated: boolean("is_deduplicated"),
    /** The number of lines that are not sent, and the first of them; null until the batch is validated. */
    duplicateCount: big("duplicate_count"),
    firstDuplicateLine: big("first_duplicate_line"),
    lineMarks: json("line_marks").$type<readonly LineMark[]>(),
    /** The time is null while clients see the batch. */
    deletedAtMs: big("deleted_at_ms"),
    ...lease(),
  },
  (batch) => [
    unique("batches_id").on(batch.id),
    index("batches_listed").on(batch.project, batch.sequence),
    index("batches_shown").on(batch.project, batch.sequence).where(isListed),
    // Versions before 0.2 use this one, which also has the batches that wait for their input.
    index("batches_to_validate").on(batch.project, batch.sequence).where(isValidating),
    index("batches_with_input").on(batch.project, batch.sequence).where(waitsForValidation),
    index("batches_to_derive").on(batch.project, batch.sequence).where(waitsForInput),
    index("batches_awaited_no_more").on(batch.project, batch.sequence).where(isAwaitedNoMore),
    index("batches_waiting_by_source").on(batch.sourceBatchId, batch.sequence).where(waitsForInput),
    index("batches_that_may_expire").on(batch.expiresAtMs).where(mayExpire),
    index("batches_by_deadline").on(batch.expiresAtMs, batch.sequence).where(mayExpire),
    index("batches_ending").on(batch.sequence).where(isEnding),
    // Only older versions read it.
    index("batches_to_finalize").on(batch.project, batch.sequence).where(isEnding),
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
      sql`least(input_tokens, cached_tokens, output_tokens, reasoning_tokens, total_tokens) >= 0`,
    ),
    check("batch_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
    check("final_batch_has_no_lease", sql`not (${isFinalBatch}) or lease_owner is null`),
  ],
);

export const chunks = pgTable(
  "chunks",
  {
    sequence: sequence(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      .references(() => batches.id),
    number: integer("number").notNull(),
    model: text("model").notNull(),
    lineCount: big("line_count").notNull(),
    extents: json("extents").$type<readonly InputExtent[]>().notNull(),
    closedAtMs: big("closed_at_ms"),
    /** The number of runs that failed since the last segment. */
    failureCount: count("failure_count"),
    ...lease(),
  },
  (chunk) => [
    unique("chunks_batch_id_number").on(chunk.batchId, chunk.number),
    index("chunks_by_model").on(chunk.batchId, chunk.model, chunk.number),
    index("chunks_open_by_batch")
      // The lease is left out, so that a renewal changes no index.
      .on(chunk.batchId, chunk.model, chunk.number)
      .where(isOpenChunk),
    check("chunk_has_lines", sql`line_count > 0`),
    check("chunk_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
    check("closed_chunk_has_no_lease", sql`closed_at_ms is null or lease_owner is null`),
  ],
);

export const segments = pgTable(
  "segments",
  {
    sequence: sequence(),
    batchId: text("batch_id").$type<BatchId>().notNull(),
    chunkNumber: integer("chunk_number").notNull(),
    blobKey: text("blob_key").notNull(),
    bytes: big("bytes").notNull(),
    crc32: big("crc32").notNull(),
    ...results(),
    failureGroups: json("failure_groups").$type<readonly FailureGroup[]>(),
    modelUsage: json("model_usage").$type<readonly StoredModelUsage[]>(),
    latencyCounts: big("latency_counts").array(),
  },
  (segment) => [
    unique("segments_blob_key").on(segment.blobKey),
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
export const batchProgress = pgTable(
  "batch_progress",
  {
    sequence: sequence(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      // A replica of an older version deletes batches without knowing this table.
      .references(() => batches.id, { onDelete: "cascade" }),
    samples: json("samples").$type<readonly StoredSample[]>().notNull(),
  },
  (progress) => [unique("batch_progress_batch_id").on(progress.batchId)],
);

/** The outbox: events of final batches that are still to be sent. */
export const webhookDeliveries = pgTable(
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
    /** The project of the batch. It is empty in what older versions write. */
    project: text("project").notNull().default(""),
    status: text("status").$type<BatchStatus>().notNull(),
    createdAtMs: big("created_at_ms").notNull(),
    nextAttemptAtMs: big("next_attempt_at_ms").notNull(),
    attemptCount: count("attempt_count"),
    ...holder(),
  },
  (delivery) => [
    unique("deliveries_webhook_id").on(delivery.webhookId),
    // Only versions before 0.2 read it.
    index("deliveries_due").on(delivery.nextAttemptAtMs, delivery.sequence),
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

/** The forecasts of open batches. They are left out of `batches`, whose rows every journal segment changes. */
export const forecasts = pgTable(
  "forecasts",
  {
    sequence: sequence(),
    batchId: text("batch_id").$type<BatchId>().notNull(),
    etaAtMs: big("eta_at_ms"),
    isAtRisk: boolean("is_at_risk").notNull(),
    queuePosition: integer("queue_position"),
    waiting: json("waiting").$type<Waiting>(),
    commonFailure: json("common_failure").$type<CommonFailure>(),
  },
  (forecast) => [
    unique("forecasts_batch_id").on(forecast.batchId),
    index("forecasts_at_risk").on(forecast.batchId).where(sql`is_at_risk`),
  ],
);

/** The processes that use this database, until their claims end. The order of their coming decides about duties. */
export const replicas = pgTable(
  "replicas",
  {
    sequence: sequence(),
    owner: text("owner").notNull(),
    report: text("report").notNull(),
    mayKeepHouse: boolean("may_keep_house").notNull(),
    expiresAtMs: big("expires_at_ms").notNull(),
  },
  (replica) => [unique("replicas_owner").on(replica.owner)],
);

/** The parts that replicas have of upstream limits. */
export const slotShares = pgTable(
  "slot_shares",
  {
    sequence: sequence(),
    owner: text("owner").notNull(),
    target: text("target").notNull(),
    wanted: integer("wanted").notNull(),
    /** The slots that the replica may be using. */
    held: integer("held").notNull(),
    expiresAtMs: big("expires_at_ms").notNull(),
  },
  (row) => [
    unique("slot_shares_owner_target").on(row.owner, row.target),
    index("slot_shares_by_target").on(row.target),
  ],
);
