/**
 * The closed catalogue of errors that a client may get. `message` is for the client; `cause` is for the log and must
 * never reach a client. `docs/errors.md` is generated from the table.
 */
import { truncate } from "./text/truncate.ts";

interface CatalogueEntry {
  readonly status: number;
  readonly type: "invalid_request_error" | "server_error" | "insufficient_quota" | "requests";
  /** The `code` in the answer; OpenAI leaves it null for most errors. */
  readonly code: string | null;
  readonly meaning: string;
}

const invalid = (status: number, code: string | null, meaning: string): CatalogueEntry => ({
  status,
  type: "invalid_request_error",
  code,
  meaning,
});

const failing = (status: number, code: string | null, meaning: string): CatalogueEntry => ({
  status,
  type: "server_error",
  code,
  meaning,
});

export const CATALOGUE = {
  invalid_request: invalid(400, null, "The request is malformed; the message says where."),
  invalid_value: invalid(400, "invalid_value", "A field has a value that is not allowed."),
  invalid_type: invalid(400, "invalid_type", "A field has the wrong JSON type."),
  missing_parameter: invalid(400, "missing_required_parameter", "A required field is missing."),
  unknown_parameter: invalid(
    400,
    "unknown_parameter",
    "The body has a field, or the query a parameter, that is not known.",
  ),
  too_many_properties: invalid(
    400,
    "object_above_max_properties",
    "An object, most often `metadata`, has more pairs than allowed.",
  ),
  array_too_long: invalid(400, "array_above_max_length", "A list has more elements than allowed."),
  empty_array: invalid(400, "empty_array", "A list is empty that must not be."),
  string_too_long: invalid(
    400,
    "string_above_max_length",
    "A text is too long: a file name or type, an id, a key or value of `metadata`, the name of a model.",
  ),
  empty_string: invalid(400, "empty_string", "A text is empty that must not be."),
  integer_too_large: invalid(
    400,
    "integer_above_max_value",
    "A number is above the largest one allowed.",
  ),
  integer_too_small: invalid(
    400,
    "integer_below_min_value",
    "A number is below the smallest one allowed.",
  ),
  missing_credentials: invalid(401, null, "The server asks for a key and the request has none."),
  wrong_key: invalid(401, "invalid_api_key", "The key is not one of the server's."),
  missing_scope: invalid(
    403,
    "missing_scope",
    "The key does not have the scope that the route asks for; the message names it.",
  ),
  project_deleted: invalid(
    403,
    null,
    "The data of the project is being deleted, and what the request stores would be deleted, too.",
  ),
  cross_site_request: invalid(
    403,
    null,
    "A page of another site sent the request from a browser, and the server has no keys (`server.allowed_hosts`).",
  ),
  not_found: invalid(404, null, "There is no such file, batch, delivery or path for this key."),
  model_not_allowed: invalid(
    403,
    "model_not_found",
    "The project may not use the model of an interactive request.",
  ),
  model_not_found: invalid(404, "model_not_found", "No upstream serves the model."),
  method_not_allowed: invalid(405, null, "The path exists, but not with this method."),
  request_timeout: invalid(408, null, "The request did not arrive in time."),
  conflict: invalid(
    409,
    null,
    "The batch is in a status that does not allow this, or the lines to run again are not there; the message says why.",
  ),
  project_conflict: invalid(
    409,
    null,
    "The project is in the configuration, so it cannot be changed at run time, or its data is being deleted.",
  ),
  delivery_in_progress: invalid(
    409,
    "delivery_in_progress",
    "A delivery of the batch to this place has not ended, and there is one at a time.",
  ),
  idempotency_key_in_use: invalid(
    409,
    "idempotency_key_in_use",
    "A request with this `Idempotency-Key` is being carried out; ask again for its answer.",
  ),
  body_too_large: invalid(413, null, "The JSON body is larger than allowed."),
  precondition_failed: invalid(412, null, "The content has another `ETag` than `If-Match` names."),
  range_not_satisfiable: invalid(416, null, "The `Range` lies outside the file."),
  wrong_host: invalid(
    421,
    null,
    "The server has no keys, and does not know the name in the `Host` header (`server.allowed_hosts`).",
  ),
  idempotency_key_reused: invalid(
    422,
    "idempotency_key_reused",
    "The `Idempotency-Key` was used for another request in the last 24 hours.",
  ),
  headers_too_large: invalid(431, null, "The headers of the request are larger than allowed."),
  quota_exceeded: {
    status: 429,
    type: "insufficient_quota",
    code: "insufficient_quota",
    meaning:
      "The project has as many files, bytes or open batches as it may; the message names the quota. Waiting alone does not help.",
  },
  rate_limit_exceeded: {
    status: 429,
    type: "requests",
    code: "rate_limit_exceeded",
    meaning:
      "The project has sent as many requests in this minute as it may (`quotas.requests_per_minute`), or has as many interactive ones under way (`quotas.interactive_at_once`), or as many open that take long, or holds most of the memory for requests or of the connections to the database; `retry-after` says when to try again.",
  },
  internal: failing(500, null, "A fault of the server; the log has it under the request id."),
  upstream_unreachable: failing(
    502,
    "upstream_unreachable",
    "No connection to the model server could be made for an interactive request.",
  ),
  upstream_refused: failing(
    502,
    "upstream_refused",
    "The model server does not accept what batchd is configured with: its key there, its account, or the address. The operator has to correct it.",
  ),
  upstream_error: failing(
    502,
    "upstream_error",
    "The connection to the model server broke before the answer to an interactive request had begun, or it was no HTTP.",
  ),
  unavailable: failing(
    503,
    null,
    "The server is starting, stopping, out of disk space, or cannot reach its storage; try again.",
  ),
  outcome_unknown: failing(
    503,
    null,
    "The server has lost its database while it stored a batch; look whether the batch is there before you create it again.",
  ),
  model_unavailable: failing(
    503,
    "model_unavailable",
    "All upstreams of the model are down, or asked to be left alone; `retry-after` says for how long, where that is known.",
  ),
  upstream_timeout: failing(
    504,
    "upstream_timeout",
    "The model server did not begin to answer an interactive request in time.",
  ),
} as const satisfies Record<string, CatalogueEntry>;

/** The longest message, because a message may repeat a text of the client. */
const MESSAGE_CHARACTERS = 1_000;

export type ErrorName = keyof typeof CATALOGUE;

export class PublicError extends Error {
  override readonly name = "PublicError";
  readonly error: ErrorName;
  readonly param: string | null;
  /** The time after which a repeated request makes sense; null when it is not known. */
  readonly retryAfterMs: number | null;

  constructor(error: ErrorName, message: string, options: PublicErrorOptions = {}) {
    super(truncate(message, MESSAGE_CHARACTERS), { cause: options.cause });
    this.error = error;
    this.param = options.param === undefined ? null : truncate(options.param);
    this.retryAfterMs = options.retryAfterMs ?? null;
  }
}

interface PublicErrorOptions {
  readonly param?: string | undefined;
  readonly cause?: unknown;
  readonly retryAfterMs?: number | null;
}

/** No client receives it. Without it, the log and the metrics would have a failure of the server. */
export const clientGone = (before: string): PublicError =>
  new PublicError("invalid_request", `The client disconnected before ${before}.`);

/** The error for a body that is not JSON, or not of the required kind. */
export const jsonBodyError = (body: Uint8Array, cause?: unknown): PublicError =>
  new PublicError(
    "invalid_request",
    `We could not parse the JSON body of your request. (HINT: ${body.length === 0 ? EMPTY_BODY : NO_JSON})`,
    { cause },
  );

const EMPTY_BODY = "The body is empty, and this API expects a JSON object in it.";
const NO_JSON =
  "This API expects a body of valid JSON in UTF-8, and what was sent is not. Most often a quote or a comma is missing, or the HTTP library was given an object that it did not turn into JSON.";

/** An empty path stands for the body as a whole. */
export const tooManyProperties = (path: string, count: number, max: number) =>
  new PublicError(
    "too_many_properties",
    `Invalid ${path === "" ? "body" : `'${truncate(path)}'`}: too many properties. Expected an object with at most ${max} properties, but got an object with ${count} properties instead.`,
    { param: path || undefined },
  );

export const integerTooLarge = (path: string, value: number, max: number) =>
  new PublicError(
    "integer_too_large",
    `Invalid '${path}': integer above maximum value. Expected a value <= ${max}, but got ${value} instead.`,
    { param: path },
  );

export const stringTooLong = (path: string, length: number, maxLength: number) =>
  new PublicError(
    "string_too_long",
    `Invalid '${truncate(path)}': string too long. Expected a string with maximum length ${maxLength}, but got a string with length ${length} instead.`,
    { param: path },
  );

/** The error for a value outside the allowed ones, in OpenAI's words. */
export const unsupportedValue = (path: string, value: string, allowed: readonly string[]) =>
  new PublicError(
    "invalid_value",
    allowed.length === 1
      ? `Invalid value: '${truncate(value)}'. Value must be '${allowed[0]}'.`
      : `Invalid value: '${truncate(value)}'. Supported values are: ${enumerated(allowed)}.`,
    { param: path },
  );

function enumerated(values: readonly string[]): string {
  const inQuotes = values.map((value) => `'${value}'`);
  const last = inQuotes.at(-1);
  return values.length === 2
    ? `${inQuotes[0]} and ${last}`
    : `${inQuotes.slice(0, -1).join(", ")}, and ${last}`;
}
