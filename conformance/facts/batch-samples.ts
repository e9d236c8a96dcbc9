/** Batches for the checks of section 1.1, and the keys that each of them has. */
import type { Context } from "../context.ts";
import type { Batch } from "../server.ts";

export const KEYS = [
  "id",
  "object",
  "endpoint",
  "errors",
  "input_file_id",
  "completion_window",
  "status",
  "output_file_id",
  "error_file_id",
  "created_at",
  "in_progress_at",
  "expires_at",
  "finalizing_at",
  "completed_at",
  "failed_at",
  "expired_at",
  "cancelling_at",
  "cancelled_at",
  "request_counts",
  "metadata",
];
export const LATER_KEYS = ["model", "usage"];
/** batchd's own key, after all keys of OpenAI. */
export const EXTENSION = "x_batchd";

/** Batches of every kind, with their first and their last object. */
export async function allBatches({ stories }: Context): Promise<Batch[]> {
  const kinds = [
    await stories.clean(),
    await stories.mixed(),
    await stories.faulty(),
    await stories.missingInput(),
    await stories.cancelledWhileRunning(),
    await stories.cancelledWhileValidating(),
  ];
  return kinds.flatMap(({ created, final }) => [created, final]);
}
