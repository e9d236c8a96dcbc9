/** The answers of all routes, in the shapes of an OpenAPI document. */
import { z } from "zod";
import type { ZodOpenApiResponseObject } from "zod-openapi";
import { ErrorEnvelope } from "./error.ts";
import { errorExample } from "./openapi-examples.ts";
import {
  CONFLICT_HEADERS,
  FILE_HEADERS,
  PASSED_ON_HEADERS,
  PAUSE_HEADERS,
  RATE_HEADERS,
  REFUSED_HEADERS,
  REPLAY_HEADERS,
  TRACKING_HEADERS,
  WAIT_HEADERS,
} from "./openapi-headers.ts";

const JSON_TYPE = "application/json";
const BYTES_TYPE = "application/octet-stream";

type Json = z.infer<ReturnType<typeof z.json>>;

export function answer(
  description: string,
  schema: z.ZodType,
  examples: Readonly<Record<string, unknown>>,
): ZodOpenApiResponseObject {
  const named = Object.entries(examples).map(([name, value]) => [name, { value: value as Json }]);
  const optional = named.length === 0 ? {} : { examples: Object.fromEntries(named) };
  return {
    description,
    headers: TRACKING_HEADERS,
    content: { [JSON_TYPE]: { schema, ...optional } },
  };
}

/** The body of a request, in JSON. */
export const jsonBody = (schema: z.ZodType, example: unknown) => ({
  required: true,
  content: { [JSON_TYPE]: { schema, example: example as Json } },
});

type Headers = ZodOpenApiResponseObject["headers"];

const withHeaders = (response: ZodOpenApiResponseObject, headers: Headers) => ({
  ...response,
  headers: { ...TRACKING_HEADERS, ...headers } as NonNullable<Headers>,
});

/** The answer to a request that takes an `Idempotency-Key`. */
export const answerOnce = (...described: Parameters<typeof answer>) =>
  withHeaders(answer(...described), REPLAY_HEADERS);

/** An answer that a client may also have as comma-separated values. */
export function answerOrTable(...described: Parameters<typeof answer>): ZodOpenApiResponseObject {
  const response = answer(...described);
  return { ...response, content: { ...response.content, "text/csv": { schema: z.string() } } };
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
const FORBIDDEN = failure(
  "Forbidden",
  "The key does not have the scope that the route asks for, the data of its project is being deleted, or a page of another site asks a server without keys to change something.",
  errorExample(
    "You have insufficient permissions for this operation. Missing scopes: write. Ask the operator of this server for a key that has it.",
    { code: "missing_scope" },
  ),
);
const TOO_MUCH = withHeaders(
  failure(
    "TooMuch",
    "The project has used up a quota, which the message names. A limit that passes, such as the requests per minute, has `rate_limit_exceeded` and `retry-after`; any other has `insufficient_quota`, and `x-should-retry: false`.",
    {
      error: {
        message:
          "You exceeded the quota files of the project search. Limit: 10,000. Delete what you do not need any more, wait for batches to end, or ask the operator of this server for more.",
        type: "insufficient_quota",
        param: null,
        code: "insufficient_quota",
      },
    },
  ),
  RATE_HEADERS,
);
export const FILE_NOT_FOUND = failure(
  "FileNotFound",
  "There is no such file, or it is of another project, deleted or expired.",
  errorExample("No such File object: file-abc", { param: "id" }),
);
export const UPLOAD_NOT_FOUND = failure(
  "UploadNotFound",
  "There is no such upload, or it is of another project.",
  errorExample("No such Upload object: upload_abc", { param: "id" }),
);
const BATCH_NOT_FOUND = failure(
  "BatchNotFound",
  "There is no such batch, or it is of another project.",
  errorExample("No batch found with id 'batch_abc'."),
);
export const KEY_NOT_FOUND = failure(
  "KeyNotFound",
  "There is no such key, or it was revoked.",
  errorExample("No such key: key_abc", { param: "id" }),
);
export const PROJECT_NOT_FOUND = failure(
  "ProjectNotFound",
  "There is no such project.",
  errorExample("No such project: abc", { param: "after" }),
);
export const PROJECT_CONFLICT = withHeaders(
  failure(
    "ProjectConflict",
    "The project is in the configuration, or its data is being deleted. The answer says `x-should-retry: false`.",
    errorExample("The project search is in the configuration of the server. Change it there."),
  ),
  CONFLICT_HEADERS,
);
export const MODEL_NOT_FOUND = failure(
  "ModelNotFound",
  "No upstream serves the model.",
  errorExample("The model 'abc' does not exist", { param: "model", code: "model_not_found" }),
);
const CONFLICT = withHeaders(
  failure(
    "Conflict",
    "The batch is in a status that does not allow this, most often because it has ended. The answer says `x-should-retry: false`.",
    errorExample("Cannot cancel a batch with status 'completed'."),
  ),
  CONFLICT_HEADERS,
);
/** The failures of requests that name a batch. */
export const BATCH_FAILURES = { "400": BAD_REQUEST, "404": BATCH_NOT_FOUND };
/** The failures of those that its status may forbid. */
export const BATCH_STATUS_FAILURES = { ...BATCH_FAILURES, "409": CONFLICT };
export const BODY_TOO_LARGE = failure(
  "BodyTooLarge",
  "The JSON is longer than allowed: 128 KiB, a mebibyte to complete an upload, `limits.max_line_bytes` where it goes to a model.",
  errorExample("The JSON body is larger than the 131072 bytes allowed."),
);
export const PRECONDITION_FAILED = failure(
  "PreconditionFailed",
  "The file has another `etag` than `if-match` names.",
  errorExample("The content of 'file-Q8vKp2dT6sYwLm3nR9xZ4b' has another ETag.", {
    param: "If-Match",
  }),
);

export const RANGE_NOT_SATISFIABLE = failure(
  "RangeNotSatisfiable",
  "The `Range` lies outside the file.",
  errorExample("The requested range lies outside the file."),
);
const serverError = (message: string, code: string | null = null): ErrorEnvelope => ({
  error: { message, type: "server_error", param: null, code },
});

const SERVER_ERROR = withHeaders(
  failure(
    "ServerError",
    "The server failed (500), or cannot take the request now (503, with `retry-after`).",
    serverError("The server had an error processing your request."),
  ),
  PAUSE_HEADERS,
);

/** The failures that an interactive request may meet. */
export const PROXY_FAILURES = {
  "502": failure(
    "UpstreamFailed",
    "The model server could not be reached, or broke off before its answer began.",
    serverError(
      "The model server could not be reached: connection refused.",
      "upstream_unreachable",
    ),
  ),
  "503": withHeaders(
    failure(
      "ModelUnavailable",
      "All upstreams of the model are down, or asked to be left alone; `retry-after` is there when it is known for how long.",
      serverError(
        "The model `llama-3-8b` is overloaded or cannot be reached at the moment. Please try again later.",
        "model_unavailable",
      ),
    ),
    PAUSE_HEADERS,
  ),
  "504": failure(
    "UpstreamTimeout",
    "The model server did not begin to answer in time.",
    serverError("The model did not answer within 600 seconds.", "upstream_timeout"),
  ),
};

/** The failures that a route may answer because it takes an `Idempotency-Key`. */
export const IDEMPOTENCY_FAILURES = {
  "409": withHeaders(
    failure(
      "KeyInUse",
      "A request with this `Idempotency-Key` is being carried out; the answer says `x-should-retry: true` and `retry-after: 1`. Or the state of things does not allow it, with `x-should-retry: false`.",
      errorExample("A request with the Idempotency-Key 'nightly' is being carried out.", {
        param: "Idempotency-Key",
        code: "idempotency_key_in_use",
      }),
    ),
    WAIT_HEADERS,
  ),
  "422": failure(
    "KeyReused",
    "The `Idempotency-Key` was used for another request in the last 24 hours.",
    errorExample("The Idempotency-Key 'nightly' was used for another request.", {
      param: "Idempotency-Key",
      code: "idempotency_key_reused",
    }),
  ),
};

const REFUSED = withHeaders(
  failure(
    "Refused",
    "The request never got as far as its route: the path has no such method (405), the request did not arrive in time (408), the server has no keys and does not know the name in `Host` (421), or the headers are too long (431).",
    errorExample(
      "Not allowed to PUT on /v1/batches. (HINT: Perhaps you meant to use a different HTTP method?)",
    ),
  ),
  REFUSED_HEADERS,
);

/** The failures that every route under `/v1` may answer. */
export const COMMON_FAILURES = {
  "401": UNAUTHORIZED,
  "403": FORBIDDEN,
  "429": TOO_MUCH,
  "4XX": REFUSED,
  "5XX": SERVER_ERROR,
};

/** The answer of a model server, in JSON or as the events of a stream. */
export const passedOn = (example: unknown, stream: string | null): ZodOpenApiResponseObject =>
  withHeaders(
    {
      description: "The answer of the model server, byte for byte.",
      content: {
        [JSON_TYPE]: { schema: z.looseObject({}), example: example as Json },
        ...(stream === null
          ? {}
          : { "text/event-stream": { schema: z.string(), example: stream } }),
      },
    },
    PASSED_ON_HEADERS,
  );

/** An answer in text. `schema` describes the parsed text, for a type that has a parser. */
export const textAnswer = (description: string, type: string, schema: z.ZodType = z.string()) => ({
  description,
  headers: TRACKING_HEADERS,
  content: { [type]: { schema } },
});

/** An answer with the bytes of a file and the headers that describe them. */
export const bytesAnswer = (description: string, example: string, headers?: Headers) =>
  withHeaders(
    {
      description,
      content: { [BYTES_TYPE]: { schema: z.string().meta({ format: "binary" }), example } },
    },
    { ...FILE_HEADERS, ...headers } as NonNullable<Headers>,
  );
