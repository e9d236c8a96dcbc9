/**
 * The closed catalogue of what can go wrong in a client's eyes. `message` is written for the client;
 * `cause` is for the log and never leaves. `docs/errors.md` is generated from the table.
 */

interface CatalogueEntry {
  readonly status: number;
  readonly type: "invalid_request_error" | "server_error";
  /** The `code` on the wire; OpenAI leaves it null for most errors. */
  readonly code: string | null;
  readonly meaning: string;
}

const invalid = (status: number, code: string | null, meaning: string): CatalogueEntry => ({
  status,
  type: "invalid_request_error",
  code,
  meaning,
});

export const CATALOGUE = {
  invalid_request: invalid(400, null, "The request is malformed; the message says where."),
  invalid_value: invalid(400, "invalid_value", "A field has a value that is not allowed."),
  invalid_type: invalid(400, "invalid_type", "A field has the wrong JSON type."),
  missing_parameter: invalid(400, "missing_required_parameter", "A required field is missing."),
  unknown_parameter: invalid(400, "unknown_parameter", "The body has a field that is not known."),
  too_many_properties: invalid(
    400,
    "object_above_max_properties",
    "`metadata` has more pairs than allowed.",
  ),
  string_too_long: invalid(
    400,
    "string_above_max_length",
    "A key or value of `metadata` is too long.",
  ),
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
  not_found: invalid(404, null, "There is no such file, batch or path for this key."),
  model_not_found: invalid(404, "model_not_found", "No upstream serves the model."),
  method_not_allowed: invalid(405, null, "The path exists, but not with this method."),
  request_timeout: invalid(408, null, "The request did not arrive in time."),
  conflict: invalid(409, null, "The batch is in a status that does not allow this."),
  idempotency_key_in_use: invalid(
    409,
    "idempotency_key_in_use",
    "A request with this `Idempotency-Key` is being carried out; ask again for its answer.",
  ),
  body_too_large: invalid(413, null, "The JSON body is larger than allowed."),
  range_not_satisfiable: invalid(416, null, "The `Range` lies outside the file."),
  idempotency_key_reused: invalid(
    422,
    "idempotency_key_reused",
    "The `Idempotency-Key` was used for another request in the last 24 hours.",
  ),
  headers_too_large: invalid(431, null, "The headers of the request are larger than allowed."),
  internal: {
    status: 500,
    type: "server_error",
    code: null,
    meaning: "A fault of the server; the log has it under the request id.",
  },
  unavailable: {
    status: 503,
    type: "server_error",
    code: null,
    meaning: "The server is starting, stopping, or out of disk space; try again.",
  },
} as const satisfies Record<string, CatalogueEntry>;

export type ErrorName = keyof typeof CATALOGUE;

export class PublicError extends Error {
  override readonly name = "PublicError";
  readonly error: ErrorName;
  readonly param: string | null;

  constructor(
    error: ErrorName,
    message: string,
    options: { param?: string; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.error = error;
    this.param = options.param ?? null;
  }
}
