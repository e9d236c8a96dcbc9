/** The routes that read the finished lines of a batch, with their requests and answers. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { BatchLineList, FailureList, LineQueryParams } from "./lines.ts";
import {
  answer,
  BAD_REQUEST,
  BATCH_NOT_FOUND,
  COMMON_FAILURES,
  CONFLICT,
} from "./openapi-answers.ts";
import { BATCH_EXAMPLES, INPUT_LINE_EXAMPLE, OUTPUT_LINE_EXAMPLE } from "./openapi-examples.ts";
import { TRACKING_HEADERS } from "./openapi-headers.ts";
import { RESULT_LIMITS } from "./results.ts";

const { afterLine, limit, waitSeconds } = RESULT_LIMITS;

const ROW_EXAMPLE = OUTPUT_LINE_EXAMPLE.replace(/\}\n$/, ',"x_batchd":{"line":1}}\n');

const route = (operationId: string, summary: string, rows: string) => ({
  get: {
    operationId,
    tags: ["Batches"],
    summary,
    description:
      "JSON lines in the order of the input: the rows of the result file, each with the number of its line in `x_batchd.line`. While the batch runs, these are the lines that have ended so far. The header `x-batch-status` has the status of the batch. With `Accept: text/event-stream` the lines follow as server-sent events until the batch has ended.",
    requestParams: {
      path: z.object({ batch_id: z.string().meta({ example: BATCH_EXAMPLES.created.id }) }),
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
        headers: TRACKING_HEADERS,
        content: {
          "application/jsonl": { schema: z.string(), example: ROW_EXAMPLE },
          "text/event-stream": { schema: z.string(), example: `id: 1\ndata: ${ROW_EXAMPLE}\n` },
        },
      },
      "400": BAD_REQUEST,
      "404": BATCH_NOT_FOUND,
      "409": CONFLICT,
      ...COMMON_FAILURES,
    },
  },
});

const NOT_READ = {
  "400": BAD_REQUEST,
  "404": BATCH_NOT_FOUND,
  "409": CONFLICT,
  ...COMMON_FAILURES,
};
const path = z.object({ batch_id: z.string().meta({ example: BATCH_EXAMPLES.created.id }) });

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

export const RESULT_PATHS: ZodOpenApiPathsObject = {
  "/v1/batches/{batch_id}/lines": {
    get: {
      operationId: "listBatchLines",
      tags: ["Batches"],
      summary: "Page through the lines of a batch, each with its answer",
      description:
        "Works while the batch runs. What a page reads is bounded: it may end early, and the next one begins at `last_line`.",
      requestParams: { path, query: LineQueryParams },
      responses: {
        "200": answer("A page of lines.", BatchLineList, { page: LINES_EXAMPLE }),
        ...NOT_READ,
      },
    },
  },
  "/v1/batches/{batch_id}/failures": {
    get: {
      operationId: "listBatchFailures",
      tags: ["Batches"],
      summary: "Show what fails in a batch, with examples",
      description: "The groups of `x_batchd.failures`, each with up to three lines.",
      requestParams: { path },
      responses: {
        "200": answer("The groups.", FailureList, { failures: FAILURES_EXAMPLE }),
        ...NOT_READ,
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
