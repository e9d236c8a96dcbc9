/**
 * Holds the request for a new batch to the rules of its fields, and makes the batch. The engine finds out later
 * whether the input exists and is well-formed.
 */
import {
  type Batch,
  type BatchSource,
  NO_USAGE,
  newBatchId,
  type UntrustedId,
} from "../batch/batch.ts";
import type { Decimal } from "../batch/price.ts";
import { truncate } from "../batch/truncate.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import { METADATA_LIMITS } from "../contract/create-batch.ts";
import { characterCount } from "../contract/text.ts";
import { completionWindowMs } from "../contract/window.ts";
import { PublicError, tooManyProperties, unsupportedValue } from "../errors.ts";
import type { Origin } from "../telemetry/tracing.ts";
import type { DeliveryRequest } from "./delivery-requests.ts";

export interface BatchRequest {
  readonly inputFileId: UntrustedId<"file">;
  /** The batch of whose lines the input is still to be made; null for an input of its own. */
  readonly source: BatchSource | null;
  readonly endpoint: BatchEndpoint;
  readonly completionWindow: string;
  readonly metadata: Readonly<Record<string, string>> | null;
  readonly outputExpiresAfterSeconds: number | null;
  readonly priority: number;
  readonly budget: Decimal | null;
  readonly defaultModel: string | null;
  readonly sample: number | null;
  /** Whether lines with equal bodies are sent once; null leaves it to the source, if there is one. */
  readonly dedupe: boolean | null;
  /** The places that the results go to when the batch has ended. */
  readonly deliver: readonly DeliveryRequest[];
  readonly origin: Origin;
}

/** Makes the batch that is stored for an acceptable request. */
export const newBatch = (
  project: string,
  { origin: _, deliver: __, dedupe, ...request }: BatchRequest & Pick<Batch, "traceparent">,
  { nowMs, windowMs }: { readonly nowMs: number; readonly windowMs: number },
): Batch => ({
  ...request,
  id: newBatchId(nowMs),
  project,
  status: "validating",
  stopReason: null,
  paused: null,
  isInputPending: request.source !== null,
  deduplicated: dedupe === true ? { lineCount: 0, firstLine: null } : null,
  lineMarks: [],
  model: null,
  faults: null,
  outputFileId: null,
  errorFileId: null,
  createdAtMs: nowMs,
  expiresAtMs: nowMs + windowMs,
  inProgressAtMs: null,
  finalizingAtMs: null,
  completedAtMs: null,
  failedAtMs: null,
  expiredAtMs: null,
  cancellingAtMs: null,
  cancelledAtMs: null,
  counts: { total: 0, completed: 0, failed: 0 },
  usage: NO_USAGE,
  failures: [],
});

/** Returns the length of the window. Refuses one that the operator does not allow. */
export function allowedWindowMs(window: string, allowed: readonly string[]): number {
  const windowMs = allowed.includes(window) ? completionWindowMs(window) : null;
  if (windowMs === null) throw unsupportedValue("completion_window", window, allowed);
  return windowMs;
}

/**
 * Refuses an id that cannot name a file: most often another kind of id, or a path. The validation of the batch finds
 * out whether the file exists.
 */
export function assertFileId(id: string): void {
  if (id.startsWith("file")) return;
  throw new PublicError(
    "invalid_value",
    `Invalid 'input_file_id': '${truncate(id)}'. Expected an ID that begins with 'file'.`,
    { param: "input_file_id" },
  );
}

/** Refuses metadata that OpenAI would refuse. */
export function assertMetadata(metadata: Readonly<Record<string, string>>): void {
  const { pairs, keyLength, valueLength } = METADATA_LIMITS;
  const entries = Object.entries(metadata);
  if (entries.length > pairs) {
    throw tooManyProperties("metadata", entries.length, pairs);
  }
  for (const [key, value] of entries) {
    assertLength("metadata", key, keyLength);
    assertLength(`metadata.${key}`, value, valueLength);
  }
}

function assertLength(path: string, text: string, maxLength: number): void {
  const length = characterCount(text);
  if (length <= maxLength) return;
  throw new PublicError(
    "string_too_long",
    `Invalid '${path}': string too long. Expected a string with maximum length ${maxLength}, but got a string with length ${length} instead.`,
    { param: path },
  );
}
