/** The examples in the OpenAPI document: one batch of one file, in the order in which a client meets them. */

import type { z } from "zod";
import type { BatchObject } from "./batch.ts";
import type { CreateBatch } from "./create-batch.ts";
import type { ErrorEnvelope } from "./error.ts";
import type { DeletedFile, FileObject } from "./file.ts";
import type { CreatedKey, CreateKey, DeletedKey, KeyObject } from "./key.ts";
import type { ModelObject } from "./model.ts";
import type { DeletedProject, ProjectObject, PutProject } from "./project.ts";
import type { CompleteUpload, CreateUpload, UploadObject, UploadPartObject } from "./upload.ts";
import type { UpstreamObject } from "./upstream.ts";
import type { UsageList } from "./usage.ts";

const CREATED_AT = 1_767_225_600;
const DAY_SECONDS = 86_400;
/** The year 2100: a reader who sends the example gets a key. */
const KEY_EXPIRES_AT = 4_102_444_800;

export const FILE_EXAMPLE: FileObject = {
  object: "file",
  id: "file-9hGqT2LwZ0bYx4VnKc7RdM",
  purpose: "batch",
  filename: "questions.jsonl",
  bytes: 18_204,
  created_at: CREATED_AT,
  expires_at: CREATED_AT + 30 * DAY_SECONDS,
  status: "processed",
  status_details: null,
};

export const DELETED_FILE_EXAMPLE: z.infer<typeof DeletedFile> = {
  object: "file",
  id: FILE_EXAMPLE.id,
  deleted: true,
};

export const CREATE_KEY_EXAMPLE: z.input<typeof CreateKey> = {
  name: "nightly",
  project: "search",
  scopes: ["read", "write"],
  expires_at: KEY_EXPIRES_AT,
};

export const KEY_EXAMPLE: KeyObject = {
  id: "key_5c1e0b7f9a3d4268b1f0e7d2c9a86435",
  object: "key",
  name: "nightly",
  project: "search",
  scopes: ["read", "write"],
  created_at: CREATED_AT,
  expires_at: KEY_EXPIRES_AT,
  last_used_at: null,
};

export const CREATED_KEY_EXAMPLE: CreatedKey = {
  ...KEY_EXAMPLE,
  key: "sk-batchd-5c1e0b7f9a3d4268b1f0e7d2c9a86435-…",
};

export const DELETED_KEY_EXAMPLE: z.infer<typeof DeletedKey> = {
  id: KEY_EXAMPLE.id,
  object: "key",
  deleted: true,
};

export const PUT_PROJECT_EXAMPLE: z.input<typeof PutProject> = {
  name: "search",
  weight: 2,
  quotas: { open_batches: 10, tokens_per_day: 100_000_000, cost_per_month: "100.00" },
};

export const PROJECT_EXAMPLE: ProjectObject = {
  id: "search",
  object: "project",
  weight: 2,
  models: ["*"],
  quotas: { open_batches: 10, tokens_per_day: 100_000_000, cost_per_month: "100.00" },
  files_expire_after: null,
  results_expire_after: null,
  created_at: CREATED_AT,
  deleted_at: null,
};

export const DELETED_PROJECT_EXAMPLE: z.infer<typeof DeletedProject> = {
  id: PROJECT_EXAMPLE.id,
  object: "project",
  deleted: true,
};

export const UPSTREAM_EXAMPLE: UpstreamObject = {
  object: "upstream",
  name: "gpu-1",
  models: ["llama-3-8b", "gpt-4o-mini"],
  servers: 2,
  circuit: "closed",
  unavailable: null,
  held: [],
  max_concurrency: 256,
  concurrency_limit: 192,
  in_flight: { batch: 190, interactive: 2 },
  waiting: 31,
  attempts: { answered: 48_211, rate_limited: 12, overloaded: 0, failed: 3 },
  latency_seconds: { p50: 2.5, p95: 10 },
  requests_per_minute: { limit: 6_000, used: 5_412 },
  tokens_per_minute: null,
  schedule: {
    time_zone: "Europe/Berlin",
    windows: [{ days: ["mon", "tue", "wed", "thu", "fri"], from: "20:00", to: "06:00" }],
    open: true,
    concurrency: 256,
    next: { at: CREATED_AT + 3_600, concurrency: 0 },
  },
};

export const CREATE_UPLOAD_EXAMPLE: z.infer<typeof CreateUpload> = {
  filename: FILE_EXAMPLE.filename,
  purpose: "batch",
  bytes: FILE_EXAMPLE.bytes,
  mime_type: "application/jsonl",
};

const PENDING_UPLOAD: UploadObject = {
  id: "upload_3f9c1d7e5b2a48609d4e7c8b1a6f0352",
  object: "upload",
  bytes: FILE_EXAMPLE.bytes,
  created_at: CREATED_AT,
  filename: FILE_EXAMPLE.filename,
  purpose: "batch",
  status: "pending",
  expires_at: CREATED_AT + 3_600,
  file: null,
};

export const UPLOAD_EXAMPLES = {
  pending: PENDING_UPLOAD,
  completed: { ...PENDING_UPLOAD, status: "completed", file: FILE_EXAMPLE },
  cancelled: { ...PENDING_UPLOAD, status: "cancelled" },
} as const satisfies Record<string, UploadObject>;

export const UPLOAD_PART_EXAMPLE: UploadPartObject = {
  id: "part_8a51c0de9b3f4276a1d45e60f7c2b938",
  object: "upload.part",
  created_at: CREATED_AT + 1,
  upload_id: PENDING_UPLOAD.id,
};

export const COMPLETE_UPLOAD_EXAMPLE: z.infer<typeof CompleteUpload> = {
  part_ids: [UPLOAD_PART_EXAMPLE.id],
};

export const INPUT_LINE_EXAMPLE =
  '{"custom_id": "question-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "llama-3-8b", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}}\n';

export const OUTPUT_LINE_EXAMPLE =
  '{"id":"batch_req_5e0d6c1b9a7f4832b4a1c2d3e4f50617","custom_id":"question-1","response":{"status_code":200,"request_id":"0f3c7d2a","body":{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Because air scatters blue light most."},"finish_reason":"stop"}]}},"error":null}\n';

export const CREATE_BATCH_EXAMPLE: z.infer<typeof CreateBatch> = {
  input_file_id: FILE_EXAMPLE.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
  metadata: { run: "nightly" },
};

const NEW_BATCH: BatchObject = {
  id: "batch_6955b905c4d1f2a83b7e6095d8c1aa47",
  object: "batch",
  endpoint: "/v1/chat/completions",
  model: null,
  errors: null,
  input_file_id: FILE_EXAMPLE.id,
  completion_window: "24h",
  status: "validating",
  output_file_id: null,
  error_file_id: null,
  created_at: CREATED_AT + 5,
  in_progress_at: null,
  expires_at: CREATED_AT + 5 + DAY_SECONDS,
  finalizing_at: null,
  completed_at: null,
  failed_at: null,
  expired_at: null,
  cancelling_at: null,
  cancelled_at: null,
  request_counts: { total: 0, completed: 0, failed: 0 },
  usage: {
    input_tokens: 0,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: 0,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: 0,
  },
  metadata: { run: "nightly" },
  x_batchd: {
    priority: 0,
    budget: null,
    default_model: null,
    eta: null,
    at_risk: false,
    queue_position: 2,
    waiting: null,
    common_failure: null,
    failures: [],
    paused: null,
    from: null,
    retried_by: [],
    sample: null,
    deduplicated: null,
    cost: null,
  },
};

const RUNNING_BATCH: BatchObject = {
  ...NEW_BATCH,
  model: "llama-3-8b",
  status: "in_progress",
  in_progress_at: CREATED_AT + 6,
  request_counts: { total: 100, completed: 41, failed: 0 },
  x_batchd: {
    ...NEW_BATCH.x_batchd,
    eta: CREATED_AT + 30,
    queue_position: null,
    cost: { currency: "USD", so_far: "0.003362", projected: "0.0082" },
  },
};

/** The extension of a batch that is final. */
const NOTHING_AHEAD = { ...NEW_BATCH.x_batchd, queue_position: null };

/** One batch at the moments that matter to a client. */
export const BATCH_EXAMPLES = {
  created: NEW_BATCH,
  running: RUNNING_BATCH,
  completed: {
    ...RUNNING_BATCH,
    status: "completed",
    output_file_id: "file-Wq81nSdfPz5Jr6UcTm3XaE",
    error_file_id: "file-B2vLk7HoYt9GiN4CqR0sZx",
    finalizing_at: CREATED_AT + 30,
    completed_at: CREATED_AT + 31,
    x_batchd: {
      ...NOTHING_AHEAD,
      failures: [{ status_code: 400, code: "context_length_exceeded", lines: 1 }],
    },
    request_counts: { total: 100, completed: 99, failed: 1 },
    usage: {
      input_tokens: 2_310,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: 8_120,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 10_430,
    },
  },
  failed: {
    ...NEW_BATCH,
    status: "failed",
    failed_at: CREATED_AT + 6,
    x_batchd: NOTHING_AHEAD,
    errors: {
      object: "list",
      data: [
        {
          code: "missing_required_parameter",
          message: "Missing required parameter: 'custom_id'.",
          param: "custom_id",
          line: 17,
        },
      ],
    },
  },
  paused: {
    ...RUNNING_BATCH,
    x_batchd: {
      ...NOTHING_AHEAD,
      paused: { since: CREATED_AT + 12, reason: "requested" },
    },
  },
  cancelling: { ...RUNNING_BATCH, status: "cancelling", cancelling_at: CREATED_AT + 12 },
} as const satisfies Record<string, BatchObject>;

export const MODEL_EXAMPLE: ModelObject = {
  id: "llama-3-8b",
  object: "model",
  created: CREATED_AT,
  owned_by: "gpu-1",
};

export const USAGE_EXAMPLE: UsageList = {
  object: "list",
  data: [
    {
      object: "usage",
      project: null,
      model: "llama-3-8b",
      day: null,
      requests: 1_000,
      input_tokens: 120_000,
      cached_input_tokens: 40_000,
      output_tokens: 64_000,
      cost: { currency: "USD", amount: "0.082" },
    },
  ],
};

export const pageExample = <T extends { readonly id: string }>(item: T) => ({
  object: "list" as const,
  data: [item],
  first_id: item.id,
  last_id: item.id,
  has_more: false,
});

export const errorExample = (
  message: string,
  { param = null, code = null }: { param?: string | null; code?: string | null } = {},
): ErrorEnvelope => ({ error: { message, type: "invalid_request_error", param, code } });
