/** Turns stored things into the objects of the API. */

import type { BatchCost } from "../api/batch-costs.ts";
import type { CreatedKey } from "../api/keys.ts";
import type { Batch, BatchId, StoredFile, Usage } from "../batch/batch.ts";
import { FIRST_LINES, onlyFailure, shownFailures } from "../batch/failures.ts";
import type { CommonFailure, Forecast, Waiting } from "../batch/forecast.ts";
import { formatAmount } from "../batch/price.ts";
import { isFinal, maySendLines } from "../batch/status.ts";
import type { BatchObject } from "../contract/batch.ts";
import type { FileObject } from "../contract/file.ts";
import type { CreatedKey as CreatedKeyObject, KeyObject } from "../contract/key.ts";
import type { ModelObject } from "../contract/model.ts";
import type { ProjectObject } from "../contract/project.ts";
import { toSeconds, toSecondsOrNull } from "../contract/unix-seconds.ts";
import type { UploadObject, UploadPartObject } from "../contract/upload.ts";
import type { StoredKey } from "../store/keys.ts";
import type { StoredProject } from "../store/projects.ts";
import type { Upload, UploadPart } from "../store/uploads.ts";
import type { UpstreamModel } from "../upstream/upstream.ts";

export const presentFile = (file: StoredFile): FileObject => ({
  object: "file",
  id: file.id,
  purpose: file.purpose,
  filename: file.filename,
  bytes: file.bytes,
  created_at: toSeconds(file.createdAtMs),
  expires_at: toSecondsOrNull(file.expiresAtMs),
  status: "processed",
  status_details: null,
});

export const presentKey = (key: StoredKey): KeyObject => ({
  id: key.id,
  object: "key",
  name: key.name,
  project: key.project,
  scopes: [...key.scopes],
  created_at: toSeconds(key.createdAtMs),
  expires_at: toSecondsOrNull(key.expiresAtMs),
  last_used_at: toSecondsOrNull(key.lastUsedAtMs),
});

export const presentProject = (project: StoredProject): ProjectObject => ({
  id: project.name,
  object: "project",
  ...project.rules,
  created_at: toSeconds(project.createdAtMs),
  deleted_at: toSecondsOrNull(project.deletedAtMs),
});

export const presentCreatedKey = ({ key, text }: CreatedKey): CreatedKeyObject => ({
  ...presentKey(key),
  key: text,
});

/** `file` is given for a completed upload. */
export const presentUpload = (upload: Upload, file: StoredFile | null = null): UploadObject => ({
  id: upload.id,
  object: "upload",
  bytes: upload.bytes,
  created_at: toSeconds(upload.createdAtMs),
  filename: upload.filename,
  purpose: upload.purpose,
  status: upload.status,
  expires_at: toSeconds(upload.expiresAtMs),
  file: file === null ? null : presentFile(file),
});

export const presentUploadPart = (part: UploadPart): UploadPartObject => ({
  id: part.id,
  object: "upload.part",
  created_at: toSeconds(part.createdAtMs),
  upload_id: part.uploadId,
});

/** What is known of a batch beside its row. A final batch has no forecast, and one without a price no cost. */
export interface BatchDetails {
  readonly forecast: Forecast | null;
  readonly cost: BatchCost | null;
  readonly retriedBy: readonly BatchId[];
}
export const NO_DETAILS: BatchDetails = { forecast: null, cost: null, retriedBy: [] };

export const presentBatch = (
  batch: Batch,
  { forecast, cost, retriedBy }: BatchDetails,
): BatchObject => ({
  id: batch.id,
  object: "batch",
  endpoint: batch.endpoint,
  model: batch.model,
  errors:
    batch.faults === null
      ? null
      : {
          object: "list",
          data: batch.faults.map(({ code, message, param, line }) => ({
            code,
            message,
            param,
            line,
          })),
        },
  input_file_id: batch.inputFileId,
  completion_window: batch.completionWindow,
  status: batch.status,
  output_file_id: batch.outputFileId,
  error_file_id: batch.errorFileId,
  created_at: toSeconds(batch.createdAtMs),
  in_progress_at: toSecondsOrNull(batch.inProgressAtMs),
  expires_at: toSeconds(batch.expiresAtMs),
  finalizing_at: toSecondsOrNull(batch.finalizingAtMs),
  completed_at: toSecondsOrNull(batch.completedAtMs),
  failed_at: toSecondsOrNull(batch.failedAtMs),
  expired_at: toSecondsOrNull(batch.expiredAtMs),
  cancelling_at: toSecondsOrNull(batch.cancellingAtMs),
  cancelled_at: toSecondsOrNull(batch.cancelledAtMs),
  request_counts: {
    total: batch.counts.total,
    completed: batch.counts.completed,
    failed: batch.counts.failed,
  },
  usage: presentUsage(batch.usage),
  metadata: batch.metadata,
  x_batchd: {
    priority: batch.priority,
    default_model: batch.defaultModel,
    ...presentExpected(isFinal(batch.status) ? null : forecast),
    ...(waitsForSource(batch) && { waiting: waitForSource(batch) }),
    common_failure: presentCommonFailure(forecast?.commonFailure ?? commonFailureOf(batch)),
    failures: presentFailures(batch),
    paused: presentPause(batch),
    from: presentSource(batch),
    retried_by: [...retriedBy],
    sample: batch.sample,
    budget: batch.budget,
    deduplicated: batch.inProgressAtMs === null ? null : (batch.deduplicated?.lineCount ?? null),
    cost: presentCost(cost),
  },
});

const waitsForSource = ({ isInputPending, stopReason, status }: Batch): boolean =>
  isInputPending && stopReason === null && !isFinal(status);

const waitForSource = ({ createdAtMs }: Batch) =>
  ({ reason: "source", since: toSeconds(createdAtMs), upstream_error: null }) as const;

const presentFailures = (batch: Batch): BatchObject["x_batchd"]["failures"] =>
  shownFailures(batch).map(({ status, code, count }) => ({
    status_code: status,
    code,
    lines: count,
  }));

const presentCost = (cost: BatchCost | null): BatchObject["x_batchd"]["cost"] =>
  cost && {
    currency: cost.currency,
    so_far: formatAmount(cost.soFar),
    projected: cost.projected === null ? null : formatAmount(cost.projected),
  };

const presentSource = ({ source }: Batch): BatchObject["x_batchd"]["from"] =>
  source && {
    batch: source.batchId,
    lines: source.lines,
    merge: source.isMerged,
    template: source.template === null ? null : JSON.parse(source.template),
  };

/** A pause has no meaning for a batch without lines to send. */
const presentPause = ({ paused, status, stopReason }: Batch): BatchObject["x_batchd"]["paused"] => {
  if (paused === null || stopReason !== null || !maySendLines(status)) return null;
  return { since: toSeconds(paused.sinceMs), reason: paused.reason };
};

const presentExpected = (forecast: Forecast | null) => ({
  eta: toSecondsOrNull(forecast?.etaAtMs ?? null),
  at_risk: forecast?.isAtRisk ?? false,
  queue_position: forecast?.queuePosition ?? null,
  waiting: presentWaiting(forecast?.waiting ?? null),
});

const MAX_UPSTREAM_ERROR_CHARACTERS = 200;

const presentWaiting = (waiting: Waiting | null): BatchObject["x_batchd"]["waiting"] =>
  waiting && {
    reason: waiting.reason,
    since: toSeconds(waiting.sinceMs),
    upstream_error:
      waiting.upstreamError?.slice(0, MAX_UPSTREAM_ERROR_CHARACTERS).toWellFormed() ?? null,
  };

/** What the counts of a batch say, where no process is known that has seen its first lines fail. */
function commonFailureOf(batch: Batch): CommonFailure | null {
  const failure = onlyFailure(batch);
  if (failure === null) return null;
  return { lineCount: FIRST_LINES, statusCode: failure.status, code: failure.code, message: null };
}

const presentCommonFailure = (
  failure: CommonFailure | null,
): BatchObject["x_batchd"]["common_failure"] =>
  failure && {
    lines: failure.lineCount,
    status_code: failure.statusCode,
    code: failure.code,
    message: failure.message,
  };

const presentUsage = (usage: Usage): BatchObject["usage"] => ({
  input_tokens: usage.inputTokens,
  input_tokens_details: { cached_tokens: usage.cachedTokens },
  output_tokens: usage.outputTokens,
  output_tokens_details: { reasoning_tokens: usage.reasoningTokens },
  total_tokens: usage.totalTokens,
});

export const presentModel = (model: UpstreamModel, servedSinceMs: number): ModelObject => ({
  id: model.id,
  object: "model",
  created: toSeconds(servedSinceMs),
  owned_by: model.ownedBy,
});
