/**
 * Holds the request for a new batch to the rules of its fields, and makes the batch. The engine finds out later
 * whether the input exists and is well-formed.
 */
import { type Batch, NO_USAGE, newBatchId } from "../batch/batch.ts";
import { METADATA_LIMITS } from "../contract/create-batch.ts";
import { characterCount } from "../contract/text.ts";
import { completionWindowMs } from "../contract/window.ts";
import { PublicError, stringTooLong, tooManyProperties, unsupportedValue } from "../errors.ts";
import type { Origin } from "../telemetry/tracing.ts";
import { truncate } from "../text/truncate.ts";
import type { DeliveryRequest } from "./delivery-requests.ts";

/** The fields that a batch takes over from its request as they are. */
type TakenOver =
  | "inputFileId"
  | "source"
  | "endpoint"
  | "completionWindow"
  | "metadata"
  | "outputExpiresAfterSeconds"
  | "priority"
  | "budget"
  | "defaultModel"
  | "sample";

export interface BatchRequest extends Pick<Batch, TakenOver> {
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
  if (length > maxLength) throw stringTooLong(path, length, maxLength);
}
