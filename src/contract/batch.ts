/**
 * The object `batch` with its statuses and endpoints. The schemas of this folder are the only definition of the API. The
 * server checks requests with them, and openapi.yaml is generated from them. Fields that are not OpenAI's stand in
 * `batch-extension.ts`, requests in `create-batch.ts`.
 */
import { z } from "zod";
import { BatchExtension } from "./batch-extension.ts";
import { pageOf } from "./page.ts";
import { UnixSeconds } from "./unix-seconds.ts";

/** The names of all statuses. No other file may repeat the list. */
export const BATCH_STATUSES = [
  "validating",
  "failed",
  "in_progress",
  "finalizing",
  "completed",
  "expired",
  "cancelling",
  "cancelled",
] as const;
export const BatchStatus = z.enum(BATCH_STATUSES);
export type BatchStatus = z.infer<typeof BatchStatus>;

/** The endpoints whose requests a batch may hold, in the order in which the error message lists them. */
export const BATCH_ENDPOINTS = [
  "/v1/chat/completions",
  "/v1/completions",
  "/v1/embeddings",
  "/v1/responses",
  "/v1/moderations",
  "/v1/images/generations",
  "/v1/images/edits",
  "/v1/videos",
] as const;
export const BatchEndpoint = z.enum(BATCH_ENDPOINTS);
export type BatchEndpoint = z.infer<typeof BatchEndpoint>;

/** A failed batch lists this many faults of its input at most. The input may have more. */
export const MAX_LISTED_FAULTS = 100;

const BatchError = z
  .object({
    code: z.string(),
    message: z.string(),
    param: z.string().nullable(),
    line: z.int().nullable().describe("Line of the input file, from 1; null for the whole file."),
  })
  .meta({ id: "BatchError" });

const BatchUsage = z.object({
  input_tokens: z.int(),
  input_tokens_details: z.object({ cached_tokens: z.int() }),
  output_tokens: z.int(),
  output_tokens_details: z.object({ reasoning_tokens: z.int() }),
  total_tokens: z.int(),
});

export const BatchObject = z
  .object({
    id: z.string().describe("`batch_` and 32 hexadecimal digits."),
    object: z.literal("batch"),
    endpoint: BatchEndpoint,
    model: z.string().nullable().describe("The model of its first line; null until validated."),
    errors: z.object({ object: z.literal("list"), data: z.array(BatchError) }).nullable(),
    input_file_id: z
      .string()
      .describe("With `x_batchd.from`, the file has this id once it is made."),
    completion_window: z.string().describe("The window as it was asked for."),
    status: BatchStatus,
    output_file_id: z.string().nullable(),
    error_file_id: z.string().nullable(),
    created_at: UnixSeconds,
    in_progress_at: UnixSeconds.nullable(),
    expires_at: UnixSeconds,
    finalizing_at: UnixSeconds.nullable(),
    completed_at: UnixSeconds.nullable(),
    failed_at: UnixSeconds.nullable(),
    expired_at: UnixSeconds.nullable(),
    cancelling_at: UnixSeconds.nullable(),
    cancelled_at: UnixSeconds.nullable(),
    request_counts: z.object({ total: z.int(), completed: z.int(), failed: z.int() }),
    usage: BatchUsage,
    metadata: z.record(z.string(), z.string()).nullable(),
    x_batchd: BatchExtension,
  })
  .meta({ id: "Batch" });
export type BatchObject = z.infer<typeof BatchObject>;

export const DeletedBatch = z
  .object({ id: z.string(), object: z.literal("batch"), deleted: z.literal(true) })
  .meta({ id: "DeletedBatch" });

export const BatchPage = pageOf(BatchObject).meta({ id: "BatchPage" });
