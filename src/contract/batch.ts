/**
 * The schemas of batches: the request, the object, and the statuses. The schemas of this folder are the only definition
 * of the API. The server checks requests with them, and openapi.yaml is generated from them.
 */
import { z } from "zod";
import { pageOf } from "./page.ts";
import { Decimal } from "./price.ts";
import { boundedText, ID_MAX_LENGTH } from "./text.ts";
import { BatchCost } from "./usage.ts";
import { DEFAULT_COMPLETION_WINDOW } from "./window.ts";

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

export const METADATA_LIMITS = { pairs: 16, keyLength: 64, valueLength: 512 } as const;

/** The range of seconds after its creation at which a client may let a file expire. */
export const EXPIRES_AFTER_SECONDS = { min: 3_600, max: 2_592_000 } as const;

export const ExpiresAfter = z.object({
  anchor: z.literal("created_at"),
  seconds: z.int().min(EXPIRES_AFTER_SECONDS.min).max(EXPIRES_AFTER_SECONDS.max),
});

/** The range of `priority`, which makes the share of a batch larger or smaller than the share of its neighbours. */
export const PRIORITIES = { min: -10, max: 10, default: 0 } as const;

/** The range of `sample`. */
const SAMPLE_LINES = { min: 1, max: 1_000 } as const;

/** The lines of another batch that a batch can run again. */
export const SOURCE_LINES = ["failed", "succeeded", "all"] as const;
export type SourceLines = (typeof SOURCE_LINES)[number];

const RetriedLines = z
  .strictObject({
    batch: boundedText(ID_MAX_LENGTH).describe("The batch whose lines are run again."),
    lines: z
      .enum(SOURCE_LINES)
      .default("failed")
      .describe(
        "`failed`: those without an answer, also because the batch expired or was cancelled.",
      ),
    merge: z
      .boolean()
      .nullable()
      .optional()
      .describe("Whether the result files have all lines of that batch, in its order."),
  })
  .meta({ id: "RetriedLines" });

/** The longest name of a model, in bytes of UTF-8. Each batch stores one, and it is read again and again. */
export const MAX_MODEL_BYTES = 1024;

const PRIORITY_MEANING =
  "The share of the batch beside others of its project: the higher, the larger.";
const BUDGET_MEANING =
  "The most that the batch may cost, in the currency of the prices. It pauses before the line that might exceed it.";

/** batchd's own fields of the request. They are nested so that no client takes one for a field of OpenAI. */
const CreateBatchExtension = z
  .strictObject({
    default_model: boundedText(MAX_MODEL_BYTES)
      .min(1)
      .nullable()
      .optional()
      .describe(
        "The model for lines whose `model` is empty. Left out, the server's configured default counts.",
      ),
    priority: z
      .int()
      .min(PRIORITIES.min)
      .max(PRIORITIES.max)
      .nullable()
      .optional()
      .describe(PRIORITY_MEANING),
    from: RetriedLines.nullable()
      .optional()
      .describe("Lines of an ended batch to run again, in place of `input_file_id`."),
    sample: z
      .int()
      .min(SAMPLE_LINES.min)
      .max(SAMPLE_LINES.max)
      .nullable()
      .optional()
      .describe(
        "The number of lines, spread over the file, to run before the batch pauses. Resuming it runs the rest.",
      ),
    budget: Decimal.nullable().optional().describe(BUDGET_MEANING),
  })
  .meta({ id: "CreateBatchExtension" });

const Metadata = z
  .record(z.string(), z.string())
  .nullable()
  .describe("At most 16 pairs; keys of at most 64, values of at most 512 characters.");

export const CreateBatch = z
  .strictObject({
    input_file_id: boundedText(ID_MAX_LENGTH)
      .optional()
      .describe("The input; left out only with `x_batchd.from`."),
    endpoint: BatchEndpoint,
    completion_window: z
      .string()
      .default(DEFAULT_COMPLETION_WINDOW)
      .describe("`24h`, unless the server allows more (`limits.completion_windows`)."),
    metadata: Metadata.optional(),
    output_expires_after: ExpiresAfter.nullable().optional(),
    x_batchd: CreateBatchExtension.nullable().optional(),
  })
  .meta({ id: "CreateBatch" });

/** What a client may change of a batch. A field that is missing stays as it is. */
export const UpdateBatch = z
  .strictObject({
    budget: Decimal.nullable().optional().describe(`${BUDGET_MEANING} Null takes it away.`),
    priority: z.int().min(PRIORITIES.min).max(PRIORITIES.max).optional().describe(PRIORITY_MEANING),
    metadata: Metadata.optional(),
  })
  .meta({ id: "UpdateBatch" });

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

const UnixSeconds = z.int().describe("Unix seconds.");

/** The reasons for which a batch waits, as `waiting.reason` says them. */
export const WAITING_REASONS = [
  "no_room",
  "upstream_down",
  "refused_credentials",
  "out_of_quota",
  "wrong_address",
  "not_served",
  "outside_hours",
  "journal_not_writable",
] as const;
export type WaitingReason = (typeof WAITING_REASONS)[number];

const BatchWaiting = z
  .object({
    reason: z
      .enum(WAITING_REASONS)
      .describe(
        "`no_room`: all slots are taken, or the upstream is overloaded. `upstream_down`: none of its upstreams answers. `refused_credentials`, `out_of_quota`, `wrong_address`: they refuse the key, the account or the address that batchd is configured with. `not_served`: no upstream serves its model any more. `outside_hours`: its upstreams take batch lines at other hours. `journal_not_writable`: answers cannot be kept at the moment.",
      ),
    since: UnixSeconds,
    upstream_error: z
      .string()
      .nullable()
      .describe(
        "The problem at the upstream, shortened and without secrets; null when there is none.",
      ),
  })
  .meta({ id: "BatchWaiting" });

/** The reasons for which a batch sends no new lines until it is resumed. */
export const PAUSE_REASONS = [
  ...(["requested", "sample", "budget"] as const),
  ...(["tokens_per_day", "cost_per_month"] as const),
] as const;
export type PauseReason = (typeof PAUSE_REASONS)[number];

const BatchPause = z
  .object({
    since: UnixSeconds,
    reason: z
      .enum(PAUSE_REASONS)
      .describe(
        "`requested`: a client paused it. `sample`: the lines of its sample have ended. `budget`: its next line might exceed its budget. `tokens_per_day`, `cost_per_month`: its next line might exceed this quota of its project; it goes on by itself on the next day (UTC), in the next month, or when the quota is changed.",
      ),
  })
  .meta({ id: "BatchPause" });

const BatchCommonFailure = z
  .object({
    lines: z.int().describe("The number of lines that have failed alike before any other result."),
    status_code: z.int().nullable().describe("The status of the answers; null without one."),
    code: z.string().nullable().describe("`error.code` of the answers, or of the rows."),
    message: z.string().nullable().describe("`error.message` of the first one, shortened."),
  })
  .meta({ id: "BatchCommonFailure" });

const BatchFailureGroup = z
  .object({
    status_code: z.int().nullable().describe("The status of the answers; null without one."),
    code: z
      .string()
      .nullable()
      .describe(
        "`error.code` of the answers, or of the rows. Without it and a status: all lines that no other group counts.",
      ),
    lines: z.int().describe("The number of lines."),
  })
  .meta({ id: "BatchFailureGroup" });

/**
 * batchd's own fields of the object. They are nested because some clients take every text at the top for one of
 * OpenAI's.
 */
const BatchExtension = z
  .object({
    priority: z.int(),
    default_model: z
      .string()
      .nullable()
      .describe("The model for lines whose `model` is empty; null as long as none is set."),
    eta: UnixSeconds.nullable().describe(
      "Unix seconds at which the last line will be answered, estimated from measurements; null when that is not known.",
    ),
    at_risk: z.boolean().describe("Whether the batch may not be done before `expires_at`."),
    queue_position: z
      .int()
      .nullable()
      .describe(
        "0 while its lines are being sent, else its place among the batches that wait; null when it is final.",
      ),
    waiting: BatchWaiting.nullable().describe(
      "The reason why no line of the batch goes on now; null while one does.",
    ),
    common_failure: BatchCommonFailure.nullable().describe(
      "Set when its first 50 lines have all failed in the same way; kept until the server is started again.",
    ),
    failures: z
      .array(BatchFailureGroup)
      .describe(
        "The failed lines so far by status and code, the largest group first: at most 20 groups.",
      ),
    paused: BatchPause.nullable().describe(
      "Set while no new line goes out until the batch is resumed. Its window goes on.",
    ),
    from: z
      .object({ batch: z.string(), lines: z.enum(SOURCE_LINES), merge: z.boolean() })
      .nullable()
      .describe("The batch whose lines it runs again; null for a batch with an input of its own."),
    retried_by: z
      .array(z.string())
      .describe("The batches that run lines of it again, the newest first: at most 20."),
    sample: z
      .int()
      .nullable()
      .describe("The number of lines that run before the batch pauses; null without a sample."),
    budget: Decimal.nullable().describe("The most that the batch may cost; null for no limit."),
    cost: BatchCost.nullable().describe("Null while the configuration has no price for its model."),
  })
  .meta({ id: "BatchExtension" });

export const BatchObject = z
  .object({
    id: z.string().describe("`batch_` and 32 hexadecimal digits."),
    object: z.literal("batch"),
    endpoint: BatchEndpoint,
    model: z.string().nullable().describe("The model of its first line; null until validated."),
    errors: z.object({ object: z.literal("list"), data: z.array(BatchError) }).nullable(),
    input_file_id: z.string(),
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

/** The range of `created_after`: the seconds up to the year 9999. */
export const CREATED_AFTER = { min: 0, max: 253_402_300_799 } as const;

/** The filters of `GET /v1/batches`, which are not OpenAI's. */
export const batchFilters = {
  status: BatchStatus.optional(),
  endpoint: BatchEndpoint.optional(),
  model: z.string().optional().describe("The model of the batch, as its `model` has it."),
  created_after: z
    .int()
    .min(CREATED_AFTER.min)
    .max(CREATED_AFTER.max)
    .optional()
    .describe("Unix seconds: only batches with a later `created_at`."),
  "metadata[key]": z
    .string()
    .optional()
    .describe(
      "Only batches whose metadata have this value for `key`; may be given for several keys.",
    ),
};

/** The page sizes of `GET /v1/batches`. */
export const BATCH_PAGE = { min: 0, max: 100, default: 20 } as const;
