/** What routes answer, in the shapes of an OpenAPI document. */
import { z } from "zod";
import type { ZodOpenApiResponseObject } from "zod-openapi";
import { ErrorEnvelope } from "./error.ts";
import { errorExample } from "./openapi-examples.ts";

export const JSON_TYPE = "application/json";
const BYTES_TYPE = "application/octet-stream";

type Json = z.infer<ReturnType<typeof z.json>>;

export function answer(
  description: string,
  schema: z.ZodType,
  examples: Readonly<Record<string, unknown>>,
): ZodOpenApiResponseObject {
  const named = Object.entries(examples).map(([name, value]) => [name, { value: value as Json }]);
  const shown = named.length === 0 ? {} : { examples: Object.fromEntries(named) };
  return { description, content: { [JSON_TYPE]: { schema, ...shown } } };
}

const failure = (id: string, description: string, example: ErrorEnvelope) => ({
  ...answer(description, ErrorEnvelope, { example }),
  id,
});

export const BAD_REQUEST = failure(
  "BadRequest",
  "The request is malformed or a value is not allowed; `param` names it.",
  errorExample("Missing required parameter: 'input_file_id'.", {
    param: "input_file_id",
    code: "missing_required_parameter",
  }),
);
const UNAUTHORIZED = failure(
  "Unauthorized",
  "The server asks for a key, and the request has none or a wrong one.",
  errorExample("Missing bearer or basic authentication in header"),
);
export const FILE_NOT_FOUND = failure(
  "FileNotFound",
  "There is no such file, or it is of another project, deleted or expired.",
  errorExample("No such File object: file-abc", { param: "id" }),
);
export const BATCH_NOT_FOUND = failure(
  "BatchNotFound",
  "There is no such batch, or it is of another project.",
  errorExample("No batch found with id 'batch_abc'."),
);
export const MODEL_NOT_FOUND = failure(
  "ModelNotFound",
  "No upstream serves the model.",
  errorExample("The model 'abc' does not exist", { param: "model", code: "model_not_found" }),
);
export const CONFLICT = failure(
  "Conflict",
  "The batch has ended already. The answer says `x-should-retry: false`.",
  errorExample("Cannot cancel a batch with status 'completed'."),
);
export const RANGE_NOT_SATISFIABLE = failure(
  "RangeNotSatisfiable",
  "The `Range` lies outside the file.",
  errorExample("The requested range lies outside the file."),
);
const SERVER_ERROR = failure(
  "ServerError",
  "The server failed (500), or cannot take the request now (503).",
  {
    error: {
      message: "The server had an error processing your request.",
      type: "server_error",
      param: null,
      code: null,
    },
  },
);

/** What every route under `/v1` may answer. */
export const COMMON_FAILURES = { "401": UNAUTHORIZED, "5XX": SERVER_ERROR };

export function bytesLike(example: string) {
  return { [BYTES_TYPE]: { schema: z.string().meta({ format: "binary" }), example } };
}
