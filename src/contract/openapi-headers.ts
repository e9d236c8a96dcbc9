/** The headers of answers. The document describes each one once and refers to it everywhere else. */
import type { ZodOpenApiResponseObject } from "zod-openapi";

type Headers = NonNullable<ZodOpenApiResponseObject["headers"]>;

const header = (description: string, example: string | number) => ({
  description,
  schema: { type: typeof example === "number" ? ("integer" as const) : ("string" as const) },
  example,
});

/** The descriptions, as components of the document. */
export const HEADERS = {
  RequestId: header(
    "Names this one request; the log of the server has it too.",
    "req_0f3c7d2ab1e94c5d8f60718293a4b5c6",
  ),
  OpenAIVersion: header("The version of OpenAI's API that the server speaks.", "2020-10-01"),
  ProcessingMs: header("The time that the server took, in milliseconds.", 3),
  Replayed: header(
    "The header is present, and `true`, when an earlier request with this `Idempotency-Key` got the same answer.",
    "true",
  ),
  ShouldRetry: header("Whether a client should try again.", "false"),
  RetryAfter: header("The seconds to wait before another try.", 1),
  RetryAfterMs: header("The milliseconds to wait before another try.", 1_000),
  RateLimit: header("The requests that the project may send in a minute.", 600),
  RateRemaining: header("The requests that are left in this minute.", 599),
  RateReset: header("The time to the next minute.", "42s"),
  UpstreamRequestId: header(
    "The model server's id for the request, if it reports one.",
    "req_7d1e5a0c",
  ),
  ContentDisposition: header(
    "The exact name of the file, written as RFC 6266 asks.",
    'attachment; filename="questions.jsonl"',
  ),
  ContentRange: header("The range of the bytes, and the size of the file.", "bytes 0-1023/18204"),
  AcceptRanges: header("Parts of the file may be asked for.", "bytes"),
  ETag: header(
    "SHA-256 of the file, in quotes. Files never change.",
    '"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
  ),
  BatchStatus: header("The status of the batch when the answer began.", "in_progress"),
  Allow: header("The methods that the path has.", "GET"),
} as const;

type HeaderName = keyof typeof HEADERS;

const refer = (name: HeaderName) => ({ $ref: `#/components/headers/${name}` });

/** The headers that every answer has. */
export const TRACKING_HEADERS: Headers = {
  "x-request-id": refer("RequestId"),
  "openai-version": refer("OpenAIVersion"),
  "openai-processing-ms": refer("ProcessingMs"),
};

export const REPLAY_HEADERS: Headers = { "idempotent-replayed": refer("Replayed") };
export const CONFLICT_HEADERS: Headers = { "x-should-retry": refer("ShouldRetry") };
export const WAIT_HEADERS: Headers = { ...CONFLICT_HEADERS, "retry-after": refer("RetryAfter") };
export const PAUSE_HEADERS: Headers = {
  "retry-after": refer("RetryAfter"),
  "retry-after-ms": refer("RetryAfterMs"),
};
export const RATE_HEADERS: Headers = {
  ...PAUSE_HEADERS,
  ...CONFLICT_HEADERS,
  "x-ratelimit-limit-requests": refer("RateLimit"),
  "x-ratelimit-remaining-requests": refer("RateRemaining"),
  "x-ratelimit-reset-requests": refer("RateReset"),
};
export const PASSED_ON_HEADERS: Headers = { "x-upstream-request-id": refer("UpstreamRequestId") };
export const STATUS_HEADERS: Headers = { "x-batch-status": refer("BatchStatus") };
export const REFUSED_HEADERS: Headers = { allow: refer("Allow") };
export const ETAG_HEADER: Headers = { etag: refer("ETag") };
export const FILE_HEADERS: Headers = {
  "content-disposition": refer("ContentDisposition"),
  "accept-ranges": refer("AcceptRanges"),
  ...ETAG_HEADER,
};
export const RANGE_HEADERS: Headers = { "content-range": refer("ContentRange") };
