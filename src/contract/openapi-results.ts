/** The routes that read the finished lines of a batch, with their requests and answers. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { BatchLineList, FailureList, LineQueryParams } from "./lines.ts";
import { answer, BATCH_FAILURES, BATCH_STATUS_FAILURES } from "./openapi-answers.ts";
import { BATCH_EXAMPLES, INPUT_LINE_EXAMPLE, OUTPUT_LINE_EXAMPLE } from "./openapi-examples.ts";
import { STATUS_HEADERS, TRACKING_HEADERS } from "./openapi-headers.ts";
import { BatchProgress } from "./progress.ts";
import { RESULT_LIMITS } from "./results.ts";
import { RunRecord } from "./run.ts";

const { afterLine, limit, waitSeconds } = RESULT_LIMITS;

const ROW_EXAMPLE = OUTPUT_LINE_EXAMPLE.replace(/\}\n$/, ',"x_batchd":{"line":1}}\n');

const path = z.object({ batch_id: z.string().meta({ example: BATCH_EXAMPLES.created.id }) });

const route = (operationId: string, summary: string, rows: string) => ({
  get: {
    operationId,
    summary,
    description:
      "JSON lines in the order of the input: the rows of the result file, each with the number of its line in `x_batchd.line`. While the batch runs, these are the lines that have ended so far. The header `x-batch-status` has the status of the batch. With `Accept: text/event-stream` the lines follow as server-sent events until the batch has ended.",
    requestParams: {
      path,
      query: z.object({
        after_line: z
          .int()
          .min(afterLine.min)
          .max(afterLine.max)
          .optional()
          .describe("Only lines with a higher number."),
        limit: z.int().min(limit.min).max(limit.max).optional().describe("The most lines."),
        wait: z
          .int()
          .min(waitSeconds.min)
          .max(waitSeconds.max)
          .optional()
          .describe("Seconds to wait for a line when there is none yet."),
      }),
    },
    responses: {
      "200": {
        description: rows,
        headers: { ...TRACKING_HEADERS, ...STATUS_HEADERS },
        content: {
          "application/jsonl": { schema: z.string(), example: ROW_EXAMPLE },
          "text/event-stream": { schema: z.string(), example: `id: 1\ndata: ${ROW_EXAMPLE}\n` },
        },
      },
      ...BATCH_STATUS_FAILURES,
    },
  },
});

const LINES_EXAMPLE = {
  object: "list",
  data: [
    {
      line: 1,
      custom_id: "question-1",
      status: "waiting",
      request: JSON.parse(INPUT_LINE_EXAMPLE) as Record<string, unknown>,
      response: null,
      error: null,
    },
  ],
  has_more: true,
  last_line: 1,
} as const;

const FAILURES_EXAMPLE = {
  object: "list",
  data: [
    {
      status_code: null,
      code: "request_timeout",
      lines: 3,
      examples: [
        {
          line: 17,
          custom_id: "question-17",
          message: "The model did not answer within 600 seconds.",
        },
      ],
    },
  ],
  has_more: false,
} as const;

const PROGRESS_EXAMPLE = {
  object: "batch.progress",
  batch_id: BATCH_EXAMPLES.created.id,
  points: [
    {
      at: 1_767_600_000.25,
      completed: 0,
      failed: 0,
      input_tokens: 0,
      output_tokens: 0,
      lines_per_second: 0,
      tokens_per_second: 0,
    },
    {
      at: 1_767_600_002.25,
      completed: 96,
      failed: 4,
      input_tokens: 2_400,
      output_tokens: 1_600,
      lines_per_second: 50,
      tokens_per_second: 2_000,
    },
  ],
  latency: {
    lines: 100,
    p50_ms: 325,
    p90_ms: 370,
    p95_ms: 385,
    p99_ms: 397,
    buckets: [{ up_to_ms: 400, lines: 100 }],
  },
} as const;

const RUN_EXAMPLE = {
  schema: "run_record.v1",
  batch_id: BATCH_EXAMPLES.created.id,
  name: "nightly",
  status: "completed",
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
  metadata: { name: "nightly" },
  server_version: "0.1.0",
  created_at: 1_767_600_000,
  in_progress_at: 1_767_600_001,
  finalizing_at: 1_767_600_060,
  ended_at: 1_767_600_061,
  expires_at: 1_767_686_400,
  models: {
    asked: { names: [{ name: "gpt-4o-mini", lines: 2 }], others: 0 },
    served: { names: [{ name: "gpt-4o-mini-2024-07-18", lines: 2 }], others: 0 },
    system_fingerprints: { names: [{ name: "fp_1a2b3c", lines: 2 }], others: 0 },
  },
  upstreams: ["gpu-1"],
  parameters: {
    common: { temperature: 0, max_tokens: 256 },
    large: [],
    varying: ["user"],
    left_out: 0,
  },
  input: {
    file_id: "file-7Jq2vWmNcXz4Rb8KsTdYpL",
    bytes: 512,
    sha256: "9f86d081",
    lines: 2,
    filename: "nightly.jsonl",
    location: { name: "share", path: "in/nightly.jsonl", revision: null },
  },
  output: {
    file_id: "file-1Aq2vWmNcXz4Rb8KsTdYpL",
    bytes: 2_048,
    sha256: "60303ae2",
    lines: 2,
  },
  errors: null,
  from: null,
  request_counts: { total: 2, completed: 2, failed: 0 },
  usage: {
    input_tokens: 60,
    cached_tokens: 0,
    output_tokens: 40,
    reasoning_tokens: 0,
    total_tokens: 100,
  },
  cost: { currency: "USD", amount: "0.000033" },
} as const;

export const RESULT_PATHS: ZodOpenApiPathsObject = {
  "/v1/batches/{batch_id}/lines": {
    get: {
      operationId: "listBatchLines",
      summary: "Page through the lines of a batch, each with its answer",
      description:
        "Works while the batch runs. What a page reads is bounded: it may end early, and the next one begins at `last_line`.",
      requestParams: { path, query: LineQueryParams },
      responses: {
        "200": answer("A page of lines.", BatchLineList, { page: LINES_EXAMPLE }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/failures": {
    get: {
      operationId: "listBatchFailures",
      summary: "Show what fails in a batch, with examples",
      description: "The groups of `x_batchd.failures`, each with up to three lines.",
      requestParams: { path },
      responses: {
        "200": answer("The groups.", FailureList, { failures: FAILURES_EXAMPLE }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/run": {
    get: {
      operationId: "getBatchRun",
      summary: "Show how the results of an ended batch came to be",
      description:
        "The content of `run.json` in deliveries, with the same bytes each time. docs/run_record.v1.schema.json is its JSON Schema.",
      requestParams: { path },
      responses: {
        "200": answer("The record.", RunRecord, { record: RUN_EXAMPLE }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/progress": {
    get: {
      operationId: "getBatchProgress",
      summary: "Show the course of a batch, and how long its lines took",
      description:
        "What `/batches/{id}` of the web page draws: lines and tokens over the life of the batch, and the distribution of latencies. The answer changes at most once a second.",
      requestParams: { path },
      responses: {
        "200": answer("The course.", BatchProgress, { running: PROGRESS_EXAMPLE }),
        ...BATCH_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/output": route(
    "readBatchOutput",
    "Read the answers of a batch, also while it runs",
    "The rows of lines that succeeded.",
  ),
  "/v1/batches/{batch_id}/errors": route(
    "readBatchErrors",
    "Read the failed lines of a batch, also while it runs",
    "The rows of lines that failed.",
  ),
};
