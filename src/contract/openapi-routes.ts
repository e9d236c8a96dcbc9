/** Every route, with what it takes and what it answers. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { BATCH_PAGE, BatchObject, BatchPage, CreateBatch, EXPIRES_AFTER_SECONDS } from "./batch.ts";
import {
  DeletedFile,
  FILE_PAGE,
  FileObject,
  FilePage,
  FilePurpose,
  UPLOAD_PURPOSES,
} from "./file.ts";
import { ModelList, ModelObject } from "./model.ts";
import {
  answer,
  BAD_REQUEST,
  BATCH_NOT_FOUND,
  bytesLike,
  COMMON_FAILURES,
  CONFLICT,
  FILE_NOT_FOUND,
  JSON_TYPE,
  MODEL_NOT_FOUND,
  RANGE_NOT_SATISFIABLE,
} from "./openapi-answers.ts";
import {
  BATCH_EXAMPLES,
  CREATE_BATCH_EXAMPLE,
  DELETED_FILE_EXAMPLE,
  FILE_EXAMPLE,
  INPUT_LINE_EXAMPLE,
  MODEL_EXAMPLE,
  OUTPUT_LINE_EXAMPLE,
  pageExample,
} from "./openapi-examples.ts";

const fileId = z.object({ file_id: z.string().meta({ example: FILE_EXAMPLE.id }) });
const batchId = z.object({ batch_id: z.string().meta({ example: BATCH_EXAMPLES.created.id }) });

const pageQuery = (limits: {
  readonly min: number;
  readonly max: number;
  readonly default: number;
}) => ({
  limit: z.int().min(limits.min).max(limits.max).default(limits.default),
  after: z.string().optional().describe("The `id` of the last object of the page before."),
});

const Upload = z.object({
  file: z.string().meta({ format: "binary", description: "The bytes, with their file name." }),
  purpose: z.enum(UPLOAD_PURPOSES),
  "expires_after[anchor]": z.literal("created_at").optional(),
  "expires_after[seconds]": z
    .int()
    .min(EXPIRES_AFTER_SECONDS.min)
    .max(EXPIRES_AFTER_SECONDS.max)
    .optional(),
});

const FILE_PATHS: ZodOpenApiPathsObject = {
  "/v1/files": {
    post: {
      operationId: "createFile",
      tags: ["Files"],
      summary: "Upload a file",
      description: [
        "The input of a batch has the purpose `batch` and holds one request a line:",
        `\`\`\`json\n${INPUT_LINE_EXAMPLE}\`\`\``,
        "The parts may come in any order, with or without a `Content-Length`. Only the first line is checked now; the batch checks the rest.",
      ].join("\n\n"),
      requestBody: { required: true, content: { "multipart/form-data": { schema: Upload } } },
      responses: {
        "200": answer("The file.", FileObject, { file: FILE_EXAMPLE }),
        "400": BAD_REQUEST,
        ...COMMON_FAILURES,
      },
    },
    get: {
      operationId: "listFiles",
      tags: ["Files"],
      summary: "List files",
      requestParams: {
        query: z.object({
          purpose: FilePurpose.optional(),
          ...pageQuery(FILE_PAGE),
          order: z.enum(["asc", "desc"]).default("desc").describe("By time of creation."),
        }),
      },
      responses: {
        "200": answer("A page of files.", FilePage, { page: pageExample(FILE_EXAMPLE) }),
        "400": BAD_REQUEST,
        "404": FILE_NOT_FOUND,
        ...COMMON_FAILURES,
      },
    },
  },
  "/v1/files/{file_id}": {
    get: {
      operationId: "retrieveFile",
      tags: ["Files"],
      summary: "Look at a file",
      requestParams: { path: fileId },
      responses: {
        "200": answer("The file.", FileObject, { file: FILE_EXAMPLE }),
        "404": FILE_NOT_FOUND,
        ...COMMON_FAILURES,
      },
    },
    delete: {
      operationId: "deleteFile",
      tags: ["Files"],
      summary: "Delete a file",
      description: "A batch that is already in progress goes on reading its input.",
      requestParams: { path: fileId },
      responses: {
        "200": answer("The file is gone.", DeletedFile, { deleted: DELETED_FILE_EXAMPLE }),
        "404": FILE_NOT_FOUND,
        ...COMMON_FAILURES,
      },
    },
  },
  "/v1/files/{file_id}/content": {
    get: {
      operationId: "downloadFile",
      tags: ["Files"],
      summary: "Download a file",
      description:
        "Lines of an output file are in the order of the input, and so are those of an error file.",
      requestParams: {
        path: fileId,
        header: z.object({
          range: z
            .string()
            .optional()
            .meta({ description: "One range of bytes.", example: "bytes=0-1023" }),
        }),
      },
      responses: {
        "200": { description: "The bytes.", content: bytesLike(OUTPUT_LINE_EXAMPLE) },
        "206": {
          description: "The range of bytes that was asked for.",
          content: bytesLike(OUTPUT_LINE_EXAMPLE.slice(0, 41)),
        },
        "400": BAD_REQUEST,
        "404": FILE_NOT_FOUND,
        "416": RANGE_NOT_SATISFIABLE,
        ...COMMON_FAILURES,
      },
    },
  },
};

const BATCH_PATHS: ZodOpenApiPathsObject = {
  "/v1/batches": {
    post: {
      operationId: "createBatch",
      tags: ["Batches"],
      summary: "Run the requests of a file",
      description:
        "Answers at once with a batch that is `validating`. What is wrong with the input file shows later, in `errors` of a batch that has `failed`.",
      requestBody: {
        required: true,
        content: { [JSON_TYPE]: { schema: CreateBatch, example: CREATE_BATCH_EXAMPLE } },
      },
      responses: {
        "200": answer("The new batch.", BatchObject, { created: BATCH_EXAMPLES.created }),
        "400": BAD_REQUEST,
        ...COMMON_FAILURES,
      },
    },
    get: {
      operationId: "listBatches",
      tags: ["Batches"],
      summary: "List batches, newest first",
      requestParams: { query: z.object(pageQuery(BATCH_PAGE)) },
      responses: {
        "200": answer("A page of batches.", BatchPage, {
          page: pageExample(BATCH_EXAMPLES.completed),
        }),
        "400": BAD_REQUEST,
        "404": BATCH_NOT_FOUND,
        ...COMMON_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}": {
    get: {
      operationId: "retrieveBatch",
      tags: ["Batches"],
      summary: "Look at a batch",
      requestParams: { path: batchId },
      responses: {
        "200": answer("The batch.", BatchObject, {
          running: BATCH_EXAMPLES.running,
          completed: BATCH_EXAMPLES.completed,
          failed: BATCH_EXAMPLES.failed,
        }),
        "400": BAD_REQUEST,
        "404": BATCH_NOT_FOUND,
        ...COMMON_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/cancel": {
    post: {
      operationId: "cancelBatch",
      tags: ["Batches"],
      summary: "Stop a batch and keep the answers it has",
      description:
        "The batch is `cancelling` at once and `cancelled` when the requests under way have ended. Cancelling it again changes nothing.",
      requestParams: { path: batchId },
      responses: {
        "200": answer("The batch.", BatchObject, { cancelling: BATCH_EXAMPLES.cancelling }),
        "400": BAD_REQUEST,
        "404": BATCH_NOT_FOUND,
        "409": CONFLICT,
        ...COMMON_FAILURES,
      },
    },
  },
};

const MODEL_PATHS: ZodOpenApiPathsObject = {
  "/v1/models": {
    get: {
      operationId: "listModels",
      tags: ["Models"],
      summary: "List the models that the upstreams serve",
      responses: {
        "200": answer("All models.", ModelList, {
          models: { object: "list", data: [MODEL_EXAMPLE] },
        }),
        ...COMMON_FAILURES,
      },
    },
  },
  "/v1/models/{model}": {
    get: {
      operationId: "retrieveModel",
      tags: ["Models"],
      summary: "Look at a model",
      requestParams: { path: z.object({ model: z.string().meta({ example: MODEL_EXAMPLE.id }) }) },
      responses: {
        "200": answer("The model.", ModelObject, { model: MODEL_EXAMPLE }),
        "404": MODEL_NOT_FOUND,
        ...COMMON_FAILURES,
      },
    },
  },
};

const OPERATION_PATHS: ZodOpenApiPathsObject = {
  "/health": {
    get: {
      operationId: "health",
      tags: ["Operation"],
      summary: "Whether the process lives",
      security: [],
      responses: { "200": answer("It does.", z.object({ status: z.literal("ok") }), {}) },
    },
  },
  "/ready": {
    get: {
      operationId: "ready",
      tags: ["Operation"],
      summary: "Whether requests can be served and batches can run",
      security: [],
      responses: {
        "200": answer("They can.", z.object({ status: z.literal("ready") }), {}),
        "503": answer(
          "The store, the blobs or the engine cannot be used now.",
          z.object({ status: z.literal("unavailable") }),
          {},
        ),
      },
    },
  },
};

export const PATHS: ZodOpenApiPathsObject = {
  ...FILE_PATHS,
  ...BATCH_PATHS,
  ...MODEL_PATHS,
  ...OPERATION_PATHS,
};
