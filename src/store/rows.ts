/** Conversions from rows to objects, and from a batch to its row. */
import type {
  Batch,
  BatchId,
  BatchSource,
  Chunk,
  Counts,
  FileId,
  LineMark,
  Pause,
  StoredFile,
  UntrustedId,
  Usage,
} from "../batch/batch.ts";
import type { FailureGroup } from "../batch/failures.ts";
import type { SourceLines } from "../contract/batch.ts";
import type { Segment } from "./chunks.ts";
import type { Delivery } from "./deliveries.ts";
import type { Upload, UploadPart } from "./uploads.ts";

/** The columns of a batch in both databases. The schemas are checked against it where their rows are converted. */
type BatchRow = Omit<
  Batch,
  "counts" | "failures" | "lineMarks" | "paused" | "sample" | "source" | "usage"
> &
  Usage &
  CountColumns &
  SourceColumns & {
    readonly failureGroups: readonly FailureGroup[] | null;
    readonly pausedAtMs: number | null;
    readonly pauseReason: Pause["reason"] | null;
    readonly sampleLineCount: number | null;
    readonly lineMarks: readonly LineMark[] | null;
  };

interface SourceColumns {
  readonly sourceBatchId: BatchId | null;
  readonly sourceLines: SourceLines | null;
  readonly isMerged: boolean;
  readonly mergedInputFileId: UntrustedId<"file"> | null;
  readonly mergedOutputFileId: FileId | null;
  readonly mergedErrorFileId: FileId | null;
}

interface CountColumns {
  readonly totalCount: number;
  readonly completedCount: number;
  readonly failedCount: number;
}

const countsFromRow = (row: CountColumns): Counts => ({
  total: row.totalCount,
  completed: row.completedCount,
  failed: row.failedCount,
});

export const fileFromRow = (row: StoredFile): StoredFile => ({
  id: row.id,
  project: row.project,
  purpose: row.purpose,
  filename: row.filename,
  bytes: row.bytes,
  sha256: row.sha256,
  blobKey: row.blobKey,
  createdAtMs: row.createdAtMs,
  expiresAtMs: row.expiresAtMs,
  traceparent: row.traceparent,
});

const pauseFromRow = ({ pausedAtMs, pauseReason }: BatchRow): Pause | null =>
  pausedAtMs === null ? null : { sinceMs: pausedAtMs, reason: pauseReason ?? "requested" };

function sourceFromRow(row: BatchRow): BatchSource | null {
  const { sourceBatchId: batchId, sourceLines: lines } = row;
  if (batchId === null || lines === null) return null;
  const merge = row.isMerged
    ? {
        inputFileId: row.mergedInputFileId ?? row.inputFileId,
        outputFileId: row.mergedOutputFileId,
        errorFileId: row.mergedErrorFileId,
      }
    : null;
  return { batchId, lines, merge };
}

export const batchFromRow = (row: BatchRow): Batch => ({
  id: row.id,
  project: row.project,
  endpoint: row.endpoint,
  inputFileId: row.inputFileId,
  completionWindow: row.completionWindow,
  status: row.status,
  stopReason: row.stopReason,
  paused: pauseFromRow(row),
  failures: row.failureGroups ?? [],
  sample: row.sampleLineCount,
  source: sourceFromRow(row),
  lineMarks: row.lineMarks ?? [],
  model: row.model,
  faults: row.faults,
  outputFileId: row.outputFileId,
  errorFileId: row.errorFileId,
  createdAtMs: row.createdAtMs,
  expiresAtMs: row.expiresAtMs,
  inProgressAtMs: row.inProgressAtMs,
  finalizingAtMs: row.finalizingAtMs,
  completedAtMs: row.completedAtMs,
  failedAtMs: row.failedAtMs,
  expiredAtMs: row.expiredAtMs,
  cancellingAtMs: row.cancellingAtMs,
  cancelledAtMs: row.cancelledAtMs,
  counts: countsFromRow(row),
  usage: {
    inputTokens: row.inputTokens,
    cachedTokens: row.cachedTokens,
    outputTokens: row.outputTokens,
    reasoningTokens: row.reasoningTokens,
    totalTokens: row.totalTokens,
  },
  metadata: row.metadata,
  outputExpiresAfterSeconds: row.outputExpiresAfterSeconds,
  priority: row.priority,
  budget: row.budget,
  defaultModel: row.defaultModel,
  traceparent: row.traceparent,
});

export function rowFromBatch({
  counts,
  usage,
  paused,
  failures,
  sample,
  source,
  lineMarks,
  ...batch
}: Batch): BatchRow {
  return {
    ...batch,
    ...usage,
    totalCount: counts.total,
    completedCount: counts.completed,
    failedCount: counts.failed,
    failureGroups: failures.length === 0 ? null : failures,
    pausedAtMs: paused?.sinceMs ?? null,
    pauseReason: paused?.reason ?? null,
    sampleLineCount: sample,
    sourceBatchId: source?.batchId ?? null,
    sourceLines: source?.lines ?? null,
    isMerged: source !== null && source.merge !== null,
    mergedInputFileId: source?.merge?.inputFileId ?? null,
    mergedOutputFileId: source?.merge?.outputFileId ?? null,
    mergedErrorFileId: source?.merge?.errorFileId ?? null,
    lineMarks: lineMarks.length === 0 ? null : lineMarks,
  };
}

export const chunkFromRow = (row: Chunk): Chunk => ({
  batchId: row.batchId,
  number: row.number,
  model: row.model,
  lineCount: row.lineCount,
  extents: row.extents,
});

export const segmentFromRow = (row: Segment): Segment => ({
  blobKey: row.blobKey,
  bytes: row.bytes,
  crc32: row.crc32,
});

/**
 * Converts a row as its claim left it. The row already counts the attempt of the claim, which is not an attempt
 * before it.
 */
export const deliveryFromClaimedRow = (row: Omit<Delivery, "counts"> & CountColumns): Delivery => ({
  webhookId: row.webhookId,
  eventId: row.eventId,
  webhook: row.webhook,
  batchId: row.batchId,
  status: row.status,
  counts: countsFromRow(row),
  createdAtMs: row.createdAtMs,
  attemptCount: row.attemptCount - 1,
});

export const uploadFromRow = (row: Upload): Upload => ({
  id: row.id,
  project: row.project,
  filename: row.filename,
  purpose: row.purpose,
  bytes: row.bytes,
  mimeType: row.mimeType,
  status: row.status,
  createdAtMs: row.createdAtMs,
  expiresAtMs: row.expiresAtMs,
  fileExpiresAfterSeconds: row.fileExpiresAfterSeconds,
  fileId: row.fileId,
});

export const partFromRow = (row: UploadPart): UploadPart => ({
  id: row.id,
  uploadId: row.uploadId,
  bytes: row.bytes,
  blobKey: row.blobKey,
  createdAtMs: row.createdAtMs,
});
