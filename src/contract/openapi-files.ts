/** The routes of files, for the OpenAPI document. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { EXPIRES_AFTER_SECONDS } from "./expires-after.ts";
import {
  CopyFile,
  DeletedFile,
  FILE_PAGE,
  FileObject,
  FilePage,
  FilePurpose,
  UPLOAD_PURPOSES,
} from "./file.ts";
import { IdempotencyHeader } from "./idempotency.ts";
import {
  answer,
  answerOnce,
  BAD_REQUEST,
  bytesAnswer,
  FILE_NOT_FOUND,
  IDEMPOTENCY_FAILURES,
  PRECONDITION_FAILED,
  RANGE_NOT_SATISFIABLE,
} from "./openapi-answers.ts";
import {
  DELETED_FILE_EXAMPLE,
  FILE_EXAMPLE,
  INPUT_LINE_EXAMPLE,
  OUTPUT_LINE_EXAMPLE,
  pageExample,
} from "./openapi-examples.ts";
import { ETAG_HEADER, RANGE_HEADERS, TRACKING_HEADERS } from "./openapi-headers.ts";
import { pageQuery } from "./page.ts";
import { RESULT_FORMATS } from "./results.ts";

const fileId = z.object({ file_id: z.string().meta({ example: FILE_EXAMPLE.id }) });

/** The page of the API fills in every field, so the examples are what most uploads want: an input, with its usual end. */
const FileForm = z.object({
  file: z.string().meta({ format: "binary", description: "The bytes, with their file name." }),
  purpose: z.enum(UPLOAD_PURPOSES).meta({ example: "batch" }),
  "expires_after[anchor]": z.literal("created_at").optional(),
  "expires_after[seconds]": z
    .int()
    .min(EXPIRES_AFTER_SECONDS.min)
    .max(EXPIRES_AFTER_SECONDS.max)
    .optional()
    .meta({ example: EXPIRES_AFTER_SECONDS.max }),
});

const COPY_FILE_EXAMPLE = {
  purpose: "batch",
  x_batchd: { input: { location: "share", path: "in/nightly.jsonl.gz" } },
};

const BYTES = bytesAnswer("The bytes, or the table.", OUTPUT_LINE_EXAMPLE);
const WHOLE_FILE = {
  ...BYTES,
  content: {
    ...BYTES.content,
    "text/csv": { schema: z.string(), example: '"custom_id","line","status","text"' },
    "application/vnd.apache.parquet": { schema: z.string().meta({ format: "binary" }) },
  },
};

export const FILE_PATHS: ZodOpenApiPathsObject = {
  "/v1/files": {
    post: {
      operationId: "createFile",
      summary: "Upload a file",
      description: [
        "The input of a batch has the purpose `batch` and holds one request a line:",
        `\`\`\`json\n${INPUT_LINE_EXAMPLE}\`\`\``,
        "The parts may come in any order, with or without a `Content-Length`. Only the first line is checked now; the batch checks the rest.",
        "A body of JSON names a file in a location instead, which is copied.",
      ].join("\n\n"),
      requestParams: { header: IdempotencyHeader },
      requestBody: {
        required: true,
        content: {
          "multipart/form-data": { schema: FileForm },
          "application/json": { schema: CopyFile, example: COPY_FILE_EXAMPLE },
        },
      },
      responses: {
        "200": answerOnce("The file.", FileObject, { file: FILE_EXAMPLE }),
        "400": BAD_REQUEST,
        ...IDEMPOTENCY_FAILURES,
      },
    },
    get: {
      operationId: "listFiles",
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
      },
    },
  },
  "/v1/files/{file_id}": {
    get: {
      operationId: "retrieveFile",
      summary: "Look at a file",
      requestParams: { path: fileId },
      responses: {
        "200": answer("The file.", FileObject, { file: FILE_EXAMPLE }),
        "404": FILE_NOT_FOUND,
      },
    },
    delete: {
      operationId: "deleteFile",
      summary: "Delete a file",
      description: "A batch that is already in progress goes on reading its input.",
      requestParams: { path: fileId },
      responses: {
        "200": answer("The file is gone.", DeletedFile, { deleted: DELETED_FILE_EXAMPLE }),
        "404": FILE_NOT_FOUND,
      },
    },
  },
  "/v1/files/{file_id}/content": {
    get: {
      operationId: "downloadFile",
      summary: "Download a file",
      description:
        "Lines of an output file are in the order of the input, and so are those of an error file. With `format`, a result file comes as a table with a row for each line: docs/data.md has the columns.",
      requestParams: {
        path: fileId,
        query: z.object({
          format: z.enum(RESULT_FORMATS).default("jsonl").meta({
            description:
              "`csv` and `parquet` are for files of purpose `batch_output`. A table has no length and no ranges.",
          }),
        }),
        header: z.object({
          range: z.string().optional().describe("One range of bytes, such as `bytes=0-1023`."),
          "if-none-match": z
            .string()
            .optional()
            .describe("The `etag` of what the client has: the same content is a 304 without it."),
          "if-match": z
            .string()
            .optional()
            .describe("The `etag` that the file must have: any other is a 412."),
          "if-range": z
            .string()
            .optional()
            .describe("The `etag` that the range is for: of any other file comes the whole."),
        }),
      },
      responses: {
        "200": WHOLE_FILE,
        "206": bytesAnswer(
          "The range of bytes that was asked for.",
          OUTPUT_LINE_EXAMPLE.slice(0, 41),
          RANGE_HEADERS,
        ),
        "302": {
          description:
            "The storage has the bytes, at an address that is valid for some minutes. Only with `storage.presigned_downloads`.",
          headers: {
            ...TRACKING_HEADERS,
            location: {
              description: "The address.",
              required: true,
              schema: { type: "string", format: "uri" },
            },
          },
        },
        "304": {
          description: "The client has the file already.",
          headers: { ...TRACKING_HEADERS, ...ETAG_HEADER },
        },
        "400": BAD_REQUEST,
        "404": FILE_NOT_FOUND,
        "412": PRECONDITION_FAILED,
        "416": RANGE_NOT_SATISFIABLE,
      },
    },
  },
};
