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
  OpenAIVersion: header("The version of OpenAI's API that is spoken.", "2020-10-01"),
  ProcessingMs: header("How long the server took, in milliseconds.", 3),
  Replayed: header(
    "There, and `true`, when the answer is the one that an earlier request with this `Idempotency-Key` got.",
    "true",
  ),
  ShouldRetry: header(
    "Whether it makes sense to ask again, for clients that would guess.",
    "false",
  ),
  RetryAfter: header("In how many seconds to ask again.", 1),
  RetryAfterMs: header("The same in milliseconds.", 1_000),
  UpstreamRequestId: header(
    "What the model server calls the request, if it says so.",
    "req_7d1e5a0c",
  ),
  ContentDisposition: header(
    "The name of the file; exactly, as RFC 6266 has it.",
    'attachment; filename="questions.jsonl"',
  ),
  ContentRange: header("Which bytes of how many these are.", "bytes 0-1023/18204"),
  AcceptRanges: header("Parts of the file may be asked for.", "bytes"),
  ETag: header(
    "SHA-256 of the file, in quotes. Files never change.",
    '"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
  ),
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
export const PASSED_ON_HEADERS: Headers = { "x-upstream-request-id": refer("UpstreamRequestId") };
export const REFUSED_HEADERS: Headers = { allow: refer("Allow") };
export const FILE_HEADERS: Headers = {
  "content-disposition": refer("ContentDisposition"),
  "accept-ranges": refer("AcceptRanges"),
  etag: refer("ETag"),
};
export const RANGE_HEADERS: Headers = { "content-range": refer("ContentRange") };
