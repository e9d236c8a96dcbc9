/** Composes the record of a run from the batch and from what its commits have kept. The order of its fields never changes. */
import type { Batch, StoredFile } from "../batch/batch.ts";
import type { SourceFiles } from "../batch/derivation.ts";
import { formatAmount } from "../batch/price.ts";
import type { FileSummary } from "../batch/run-summary.ts";
import { RUN_RECORD_VERSION, type RunRecord } from "../contract/run.ts";
import { toSeconds, toSecondsOrNull } from "../contract/unix-seconds.ts";
import type { KeptRun } from "../store/runs.ts";
import type { BatchCost } from "./batch-costs.ts";

export interface RunParts {
  readonly batch: Batch;
  /** It is null for a batch that ended under a version without run records. */
  readonly run: KeptRun | null;
  readonly cost: BatchCost | null;
  /** The files as far as they still exist, for a batch whose commits have kept nothing. */
  readonly files: SourceFiles<StoredFile | null>;
}

export function composeRunRecord({ batch, run, cost, files }: RunParts): RunRecord {
  const input = run?.input ?? null;
  const results = run?.results ?? null;
  const from = input?.copiedFrom ?? files.input?.copiedFrom ?? null;
  return {
    schema: RUN_RECORD_VERSION,
    batch_id: batch.id,
    name: batch.metadata?.["name"] ?? null,
    status: batch.status,
    endpoint: batch.endpoint,
    completion_window: batch.completionWindow,
    metadata: sortedMetadata(batch.metadata),
    server_version: results?.serverVersion ?? null,
    ...timesOf(batch),
    models: {
      asked: input?.models ?? null,
      served: results?.models ?? null,
      system_fingerprints: results?.fingerprints ?? null,
    },
    upstreams: results === null ? null : [...results.upstreams],
    parameters: input?.parameters ?? null,
    input: {
      ...fileOf(batch.inputFileId, input, files.input),
      filename: input?.filename ?? files.input?.filename ?? null,
      location: from && { name: from.location, path: from.path, revision: from.revision },
    },
    output: batch.outputFileId && fileOf(batch.outputFileId, results?.output, files.output),
    errors: batch.errorFileId && fileOf(batch.errorFileId, results?.error, files.error),
    from: batch.source && {
      batch: batch.source.batchId,
      lines: batch.source.lines,
      merge: batch.source.merge !== null,
    },
    request_counts: batch.counts,
    usage: usageOf(batch),
    cost: cost && { currency: cost.currency, amount: formatAmount(cost.soFar) },
  } as RunRecord;
}

const timesOf = (batch: Batch) => ({
  created_at: toSeconds(batch.createdAtMs),
  in_progress_at: toSecondsOrNull(batch.inProgressAtMs),
  finalizing_at: toSecondsOrNull(batch.finalizingAtMs),
  ended_at: toSecondsOrNull(
    batch.completedAtMs ?? batch.failedAtMs ?? batch.expiredAtMs ?? batch.cancelledAtMs,
  ),
  expires_at: toSeconds(batch.expiresAtMs),
});

const usageOf = ({ usage }: Batch) => ({
  input_tokens: usage.inputTokens,
  cached_tokens: usage.cachedTokens,
  output_tokens: usage.outputTokens,
  reasoning_tokens: usage.reasoningTokens,
  total_tokens: usage.totalTokens,
});

const fileOf = (
  file_id: string,
  kept: FileSummary | null | undefined,
  file: StoredFile | null,
): RunRecord["input"] | NonNullable<RunRecord["output"]> => ({
  file_id,
  bytes: kept?.bytes ?? file?.bytes ?? null,
  sha256: kept?.sha256 ?? file?.sha256 ?? null,
  lines: kept?.lines ?? null,
});

const sortedMetadata = (metadata: Batch["metadata"]): Record<string, string> | null =>
  metadata && Object.fromEntries(Object.entries(metadata).sort(([a], [b]) => (a < b ? -1 : 1)));
