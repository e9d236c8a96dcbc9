/** Lists all routes, with the requests that they take and the answers that they give. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { BatchObject, BatchPage, DeletedBatch } from "./batch.ts";
import { BATCH_PAGE, batchFilters } from "./batch-list.ts";
import { CreateBatch, UpdateBatch } from "./create-batch.ts";
import { IdempotencyHeader } from "./idempotency.ts";
import { ModelList, ModelObject } from "./model.ts";
import { ADMIN_PATHS } from "./openapi-admin.ts";
import {
  answer,
  answerOnce,
  answerOrTable,
  BAD_REQUEST,
  BATCH_FAILURES,
  BATCH_STATUS_FAILURES,
  BODY_TOO_LARGE,
  IDEMPOTENCY_FAILURES,
  jsonBody,
  MODEL_NOT_FOUND,
  textAnswer,
} from "./openapi-answers.ts";
import { DELIVERY_PATHS } from "./openapi-deliveries.ts";
import {
  BATCH_EXAMPLES,
  CREATE_BATCH_EXAMPLE,
  MODEL_EXAMPLE,
  pageExample,
  USAGE_EXAMPLE,
} from "./openapi-examples.ts";
import { FILE_PATHS } from "./openapi-files.ts";
import { INTERACTIVE_PATHS } from "./openapi-interactive.ts";
import { operationsOf } from "./openapi-operations.ts";
import { RESULT_PATHS } from "./openapi-results.ts";
import { UPLOAD_PATHS } from "./openapi-uploads.ts";
import { pageQuery } from "./page.ts";
import { UsageList, UsageQuery } from "./usage.ts";

const batchId = z.object({ batch_id: z.string().meta({ example: BATCH_EXAMPLES.created.id }) });

const BATCH_PATHS: ZodOpenApiPathsObject = {
  "/v1/batches": {
    post: {
      operationId: "createBatch",
      summary: "Run the requests of a file",
      description:
        "Answers at once with a batch that is `validating`. What is wrong with the input file shows later, in `errors` of a batch that has `failed`.",
      requestParams: { header: IdempotencyHeader },
      requestBody: jsonBody(CreateBatch, CREATE_BATCH_EXAMPLE),
      responses: {
        "200": answerOnce("The new batch.", BatchObject, { created: BATCH_EXAMPLES.created }),
        ...BATCH_FAILURES,
        "413": BODY_TOO_LARGE,
        ...IDEMPOTENCY_FAILURES,
      },
    },
    get: {
      operationId: "listBatches",
      summary: "List batches, newest first",
      requestParams: { query: z.object({ ...pageQuery(BATCH_PAGE), ...batchFilters }) },
      responses: {
        "200": answer("A page of batches.", BatchPage, {
          page: pageExample(BATCH_EXAMPLES.completed),
        }),
        ...BATCH_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}": {
    get: {
      operationId: "retrieveBatch",
      summary: "Look at a batch",
      requestParams: { path: batchId },
      responses: {
        "200": answer("The batch.", BatchObject, {
          running: BATCH_EXAMPLES.running,
          completed: BATCH_EXAMPLES.completed,
          failed: BATCH_EXAMPLES.failed,
        }),
        ...BATCH_FAILURES,
      },
    },
    post: {
      operationId: "updateBatch",
      summary: "Change the budget, the priority or the metadata of a batch",
      description:
        "Fields that are missing stay as they are. A batch that has ended, or is about to, takes `metadata` alone. A higher budget does not resume a batch that is paused.",
      requestParams: { path: batchId },
      requestBody: jsonBody(UpdateBatch, { budget: "7.50", priority: 5 }),
      responses: {
        "200": answer("The batch.", BatchObject, { running: BATCH_EXAMPLES.running }),
        ...BATCH_STATUS_FAILURES,
        "413": BODY_TOO_LARGE,
      },
    },
    delete: {
      operationId: "deleteBatch",
      summary: "Delete a batch and its results",
      description:
        "The batch and its result files are gone at once; a batch that still runs is cancelled. What is stored of them is removed soon after.",
      requestParams: {
        path: batchId,
        query: z.object({
          files: z.literal("input").optional().describe("`input` deletes the input file too."),
        }),
      },
      responses: {
        "200": answer("It is gone.", DeletedBatch, {
          deleted: { id: BATCH_EXAMPLES.created.id, object: "batch", deleted: true },
        }),
        ...BATCH_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/cancel": {
    post: {
      operationId: "cancelBatch",
      summary: "Stop a batch and keep the answers it has",
      description:
        "The batch is `cancelling` at once and `cancelled` when the requests under way have ended. Cancelling it again changes nothing.",
      requestParams: { path: batchId },
      responses: {
        "200": answer("The batch.", BatchObject, { cancelling: BATCH_EXAMPLES.cancelling }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/pause": {
    post: {
      operationId: "pauseBatch",
      summary: "Send no new lines of a batch",
      description:
        "Requests under way end and count, and the window of the batch goes on. Pausing it again changes nothing.",
      requestParams: { path: batchId },
      responses: {
        "200": answer("The batch.", BatchObject, { paused: BATCH_EXAMPLES.paused }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/resume": {
    post: {
      operationId: "resumeBatch",
      summary: "Send the lines of a paused batch again",
      description: "A batch that is not paused stays as it is.",
      requestParams: { path: batchId },
      responses: {
        "200": answer("The batch.", BatchObject, { running: BATCH_EXAMPLES.running }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
};

const MODEL_PATHS: ZodOpenApiPathsObject = {
  "/v1/models": {
    get: {
      operationId: "listModels",
      summary: "List the models that the upstreams serve",
      responses: {
        "200": answer("All models.", ModelList, {
          models: { object: "list", data: [MODEL_EXAMPLE] },
        }),
      },
    },
  },
  "/v1/models/{model}": {
    get: {
      operationId: "retrieveModel",
      summary: "Look at a model",
      requestParams: { path: z.object({ model: z.string().meta({ example: MODEL_EXAMPLE.id }) }) },
      responses: {
        "200": answer("The model.", ModelObject, { model: MODEL_EXAMPLE }),
        "404": MODEL_NOT_FOUND,
      },
    },
    delete: {
      operationId: "deleteModel",
      summary: "Delete a fine-tuned model",
      description: "There are none, so the answer is always that there is no such model.",
      requestParams: { path: z.object({ model: z.string().meta({ example: MODEL_EXAMPLE.id }) }) },
      responses: { "404": MODEL_NOT_FOUND },
    },
  },
};

const USAGE_PATHS: ZodOpenApiPathsObject = {
  "/v1/usage": {
    get: {
      operationId: "listUsage",
      summary: "What answers took and cost",
      description:
        "Sums by project, model and day. A key with the scope `admin` sees all projects, another one its own.",
      requestParams: { query: z.object(UsageQuery) },
      responses: {
        "200": answerOrTable("The sums, as JSON or as a table.", UsageList, {
          usage: USAGE_EXAMPLE,
        }),
        "400": BAD_REQUEST,
      },
    },
  },
};

const OPERATION_PATHS: ZodOpenApiPathsObject = {
  "/health": {
    get: {
      operationId: "health",
      summary: "Whether the process lives",
      security: [],
      responses: {
        "200": answer("It does.", z.object({ status: z.literal("ok") }), {
          ok: { status: "ok" },
        }),
      },
    },
  },
  "/ready": {
    get: {
      operationId: "ready",
      summary: "Whether requests can be served and batches can run",
      security: [],
      responses: {
        "200": answer("They can.", z.object({ status: z.literal("ready") }), {
          ready: { status: "ready" },
        }),
        "503": answer(
          "The store, the blobs or the engine cannot be used now.",
          z.object({ status: z.literal("unavailable") }),
          { unavailable: { status: "unavailable" } },
        ),
      },
    },
  },
  "/metrics": {
    get: {
      operationId: "metrics",
      summary: "How the server is doing, for Prometheus",
      security: [],
      responses: {
        "200": textAnswer("The metrics in the text format of Prometheus.", "text/plain"),
      },
    },
  },
  "/openapi.yaml": {
    get: {
      operationId: "openapi",
      summary: "This document",
      security: [],
      responses: {
        "200": textAnswer(
          "The document.",
          "application/yaml",
          z.looseObject({ openapi: z.string() }),
        ),
      },
    },
  },
  "/docs": {
    get: {
      operationId: "docs",
      summary: "This document as a page for people",
      security: [],
      responses: { "200": textAnswer("The page.", "text/html") },
    },
  },
};

export const PATHS: ZodOpenApiPathsObject = {
  ...operationsOf("Files", FILE_PATHS),
  ...operationsOf("Uploads", UPLOAD_PATHS),
  ...operationsOf("Batches", { ...BATCH_PATHS, ...RESULT_PATHS, ...DELIVERY_PATHS }),
  ...operationsOf("Requests", INTERACTIVE_PATHS),
  ...operationsOf("Models", MODEL_PATHS),
  ...operationsOf("Administration", ADMIN_PATHS),
  ...operationsOf("Usage", USAGE_PATHS),
  ...operationsOf("Operation", OPERATION_PATHS),
};
