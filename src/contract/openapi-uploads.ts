/** The routes of uploads, which bring large files in parts, for the OpenAPI document. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { IdempotencyHeader } from "./idempotency.ts";
import {
  answer,
  answerOnce,
  BAD_REQUEST,
  BODY_TOO_LARGE,
  IDEMPOTENCY_FAILURES,
  jsonBody,
  UPLOAD_NOT_FOUND,
} from "./openapi-answers.ts";
import {
  COMPLETE_UPLOAD_EXAMPLE,
  CREATE_UPLOAD_EXAMPLE,
  UPLOAD_EXAMPLES,
  UPLOAD_PART_EXAMPLE,
} from "./openapi-examples.ts";
import {
  CompleteUpload,
  CreateUpload,
  PART_MAX_BYTES,
  UPLOAD_MAX_PARTS,
  UploadObject,
  UploadPartObject,
} from "./upload.ts";

const uploadId = z.object({
  upload_id: z.string().meta({ example: UPLOAD_EXAMPLES.pending.id }),
});

const Part = z.object({
  data: z.string().meta({
    format: "binary",
    description: `The bytes of the part: at most ${PART_MAX_BYTES}.`,
  }),
});

export const UPLOAD_PATHS: ZodOpenApiPathsObject = {
  "/v1/uploads": {
    post: {
      operationId: "createUpload",
      summary: "Begin a file that comes in parts",
      description:
        "Add its parts, then complete it: an upload that is not completed within an hour expires.",
      requestParams: { header: IdempotencyHeader },
      requestBody: jsonBody(CreateUpload, CREATE_UPLOAD_EXAMPLE),
      responses: {
        "200": answerOnce("The new upload.", UploadObject, { pending: UPLOAD_EXAMPLES.pending }),
        "400": BAD_REQUEST,
        "413": BODY_TOO_LARGE,
        ...IDEMPOTENCY_FAILURES,
      },
    },
  },
  "/v1/uploads/{upload_id}/parts": {
    post: {
      operationId: "addUploadPart",
      summary: "Add a part",
      description: `Parts may be added side by side and in any order; their order in the file is said when the upload is completed. An upload takes at most ${UPLOAD_MAX_PARTS} parts, those included that are not listed then.`,
      requestParams: { path: uploadId },
      requestBody: { required: true, content: { "multipart/form-data": { schema: Part } } },
      responses: {
        "200": answer("The part.", UploadPartObject, { part: UPLOAD_PART_EXAMPLE }),
        "400": BAD_REQUEST,
        "404": UPLOAD_NOT_FOUND,
      },
    },
  },
  "/v1/uploads/{upload_id}/complete": {
    post: {
      operationId: "completeUpload",
      summary: "Make a file of the parts",
      description:
        "The parts that are listed must have as many bytes together as the upload was created for, and the file must pass the checks of `POST /v1/files`. Otherwise the upload stays pending, and may be completed in another way.",
      requestParams: { path: uploadId, header: IdempotencyHeader },
      requestBody: jsonBody(CompleteUpload, COMPLETE_UPLOAD_EXAMPLE),
      responses: {
        "200": answerOnce("The upload, with its file.", UploadObject, {
          completed: UPLOAD_EXAMPLES.completed,
        }),
        "400": BAD_REQUEST,
        "404": UPLOAD_NOT_FOUND,
        "413": BODY_TOO_LARGE,
        ...IDEMPOTENCY_FAILURES,
      },
    },
  },
  "/v1/uploads/{upload_id}/cancel": {
    post: {
      operationId: "cancelUpload",
      summary: "Give an upload up",
      description: "Its parts are removed. Cancelling it again changes nothing.",
      requestParams: { path: uploadId },
      responses: {
        "200": answer("The upload.", UploadObject, { cancelled: UPLOAD_EXAMPLES.cancelled }),
        "400": BAD_REQUEST,
        "404": UPLOAD_NOT_FOUND,
      },
    },
  },
};
