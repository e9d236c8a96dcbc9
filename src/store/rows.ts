/** Conversions from rows to objects, and from a batch to its row. */
import type {
  Batch,
  BatchId,
  BatchSource,
  Chunk,
  Counts,
  Duplicates,
  FileId,
  LineMark,
  Pause,
  StoredFile,
  UntrustedId,
  Usage,
} from "../batch/batch.ts";
import type { Delivery } from "../batch/delivery.ts";
import type { FailureGroup } from "../batch/failures.ts";
import type { CopiedFrom } from "../batch/run-summary.ts";
import type { SourceLines } from "../contract/batch-extension.ts";
import type { KeptDeliveryStatus } from "../contract/delivery.ts";
import type { Segment } from "./chunks.ts";
import type { NewDelivery } from "./deliveries.ts";
import type { NewKey, StoredKey } from "./keys.ts";
import type { DerivedInput } from "./sources.ts";
import type { Upload, UploadPart } from "./uploads.ts";
import type { BatchPlan } from "./validation.ts";

/** The columns of a batch in both databases. The schemas are checked against it where their rows are converted. */
export type BatchRow = Omit<
  Batch,
  | "counts"
  | "deduplicated"
  | "failures"
  | "isInputPending"
  | "lineMarks"
  | "paused"
  | "sample"
  | "source"
  | "usage"
> &
  Usage &
  CountColumns &
  SourceColumns & {
    readonly failureGroups: readonly FailureGroup[] | null;
    readonly pausedAtMs: number | null;
    readonly pauseReason: Pause["reason"] | null;
    readonly sampleLineCount: number | null;
    readonly lineMarks: readonly LineMark[] | null;
    readonly isInputPending: boolean | null;
    readonly isDeduplicated: boolean | null;
    readonly duplicateCount: number | null;
    readonly firstDuplicateLine: number | null;
  };

interface SourceColumns {
  readonly sourceBatchId: BatchId | null;
  readonly sourceLines: SourceLines | null;
  readonly sourceTemplate: string | null;
  readonly isMerged: boolean;
  readonly mergedInputFileId: UntrustedId<"file"> | null;
  readonly mergedOutputFileId: FileId | null;
  readonly mergedErrorFileId: FileId | null;
}

export interface CountColumns {
  readonly totalCount: number;
  readonly completedCount: number;
  readonly failedCount: number;
}

export const countsFromRow = (row: CountColumns): Counts => ({
  total: row.totalCount,
  completed: row.completedCount,
  failed: row.failedCount,
});

export type FileRow = Omit<StoredFile, "copiedFrom"> & { readonly copiedFrom: CopiedFrom | null };

export const fileFromRow = (row: FileRow): StoredFile => ({
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
  ...(row.copiedFrom != null && { copiedFrom: row.copiedFrom }),
});

const pauseFromRow = ({ pausedAtMs, pauseReason }: BatchRow): Pause | null =>
  pausedAtMs === null ? null : { sinceMs: pausedAtMs, reason: pauseReason ?? "requested" };

const duplicatesFromRow = (row: BatchRow): Duplicates => ({
  lineCount: row.duplicateCount ?? 0,
  firstLine: row.firstDuplicateLine,
});

function sourceFromRow(row: BatchRow): BatchSource | null {
  const { sourceBatchId: batchId, sourceLines: lines } = row;
  if (batchId === null || lines === null) return null;
  const { isMerged, sourceTemplate: template } = row;
  const hasFiles = isMerged && row.isInputPending !== true;
  const merge = hasFiles
    ? {
        inputFileId: row.mergedInputFileId ?? row.inputFileId,
        outputFileId: row.mergedOutputFileId,
        errorFileId: row.mergedErrorFileId,
      }
    : null;
  return { batchId, lines, isMerged, merge, template };
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
  isInputPending: row.isInputPending === true,
  deduplicated: row.isDeduplicated === true ? duplicatesFromRow(row) : null,
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
  isInputPending,
  deduplicated,
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
    sourceTemplate: source?.template ?? null,
    isMerged: source?.isMerged ?? false,
    mergedInputFileId: source?.merge?.inputFileId ?? null,
    mergedOutputFileId: source?.merge?.outputFileId ?? null,
    mergedErrorFileId: source?.merge?.errorFileId ?? null,
    lineMarks: lineMarks.length === 0 ? null : lineMarks,
    isInputPending: isInputPending || null,
    isDeduplicated: deduplicated === null ? null : true,
    duplicateCount: deduplicated?.lineCount ?? null,
    firstDuplicateLine: deduplicated?.firstLine ?? null,
  };
}

/** Returns the columns that the plan of a batch sets when the batch starts. */
export const planColumns = (plan: BatchPlan) => ({
  status: "in_progress" as const,
  model: plan.model,
  defaultModel: plan.defaultModel,
  totalCount: plan.total,
  estimatedTokens: plan.estimatedTokens,
  sampleChunkCount: plan.sampleChunkCount,
  lineMarks: plan.lineMarks,
  duplicateCount: plan.duplicates.lineCount,
  firstDuplicateLine: plan.duplicates.firstLine,
  hasChunks: true,
  failureCount: 0,
});

/** Returns the columns that a batch gets with the input that was made for it. */
export const derivedColumns = ({ merge, lineMarks, defaultModel }: DerivedInput) => ({
  isInputPending: null,
  isMerged: merge !== null,
  lineMarks,
  defaultModel,
  mergedInputFileId: merge?.inputFileId ?? null,
  mergedOutputFileId: merge?.outputFileId ?? null,
  mergedErrorFileId: merge?.errorFileId ?? null,
  failureCount: 0,
});

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

interface KeyRow extends NewKey, Pick<StoredKey, "lastUsedAtMs"> {
  readonly sequence: number;
}

export const keyFromRow = ({ sequence: _, digest: __, ...key }: KeyRow): StoredKey => key;

/** The columns of a delivery in both databases. */
export type DeliveryRow = Omit<Delivery, "status"> & {
  readonly status: KeptDeliveryStatus;
  readonly leaseOwner: string | null;
};

/** A pending delivery with a holder is being delivered. */
export const deliveryFromRow = (row: DeliveryRow): Delivery => ({
  id: row.id,
  batchId: row.batchId,
  location: row.location,
  s3: row.s3,
  path: row.path,
  format: row.format,
  status: row.status === "pending" && row.leaseOwner !== null ? "delivering" : row.status,
  attemptCount: row.attemptCount,
  error: row.error,
  address: row.address,
  createdAtMs: row.createdAtMs,
  dueAtMs: row.dueAtMs,
  nextAttemptAtMs: row.nextAttemptAtMs,
  endedAtMs: row.endedAtMs,
});

/** Returns the row of a delivery whose batch is not final yet. */
export const deliveryRow = (
  batch: { readonly id: BatchId; readonly project: string },
  { id, ...delivery }: NewDelivery,
) => ({
  id,
  batchId: batch.id,
  project: batch.project,
  location: delivery.location,
  s3: delivery.s3,
  destination: delivery.destination,
  path: delivery.path,
  format: delivery.format,
  status: "pending" as const,
  credentials: delivery.credentials,
  createdAtMs: delivery.createdAtMs,
});
