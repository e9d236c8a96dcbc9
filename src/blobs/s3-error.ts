/** Says what an error of the SDK means, and translates it into one of the port. */
import { BlobNotFound, BlobsUnavailable } from "./blobs.ts";

/** What became of a request. A request that the SDK repeats counts each time, as it does for the service. */
export type S3Outcome = "ok" | "missing" | "throttled" | "refused" | "failed";

/** The error for an answer that some other server has given in the place of the bucket. Its text names no address. */
export class NotFromBucket extends Error {
  override readonly name = "NotFromBucket";
}

/** What a server says that heeds the condition of a read, said in the place of one that does not. */
export class PreconditionFailed extends Error {
  override readonly name = "PreconditionFailed";
  readonly $metadata = { httpStatusCode: 412 };
}

interface ServiceError extends Error {
  readonly code?: unknown;
  readonly $metadata?: { readonly httpStatusCode?: number };
}

/** The answers of a server that needs nothing but time. */
const PASSING_STATUSES = [408, 409, 425, 429];
const THROTTLING_STATUSES = [429, 503];
const THROTTLING_NAMES = ["SlowDown", "Throttling", "ThrottlingException"];
const PASSING_NAMES = ["RequestTimeout", "TinyPieces", ...THROTTLING_NAMES];

export const statusOf = (error: unknown) => (error as ServiceError).$metadata?.httpStatusCode;

/** Recognizes a missing object. The answer to a HEAD has no body, so its name is `NotFound`. */
export const isMissing = (error: unknown): boolean =>
  error instanceof Error && ["NoSuchKey", "NotFound"].includes(error.name);

export const isOutOfRange = (error: unknown): boolean => statusOf(error) === 416;

/** Recognizes a multipart upload that was completed or aborted before. */
export const isNoSuchUpload = (error: unknown): boolean =>
  error instanceof Error && error.name === "NoSuchUpload";

/** Recognizes a server that does not know the operation. */
export const isNotImplemented = (error: unknown): boolean =>
  [405, 501].includes(statusOf(error) ?? 0) ||
  (error instanceof Error && error.name === "NotImplemented");

export function outcomeOf(error: unknown): S3Outcome {
  const status = statusOf(error) ?? 0;
  if (THROTTLING_STATUSES.includes(status) || THROTTLING_NAMES.includes((error as Error).name)) {
    return "throttled";
  }
  if (status === 404) return "missing";
  return status >= 400 && status < 500 ? "refused" : "failed";
}

/**
 * Recognizes the word of the service itself that there is no such object. A proxy before a service that is away may answer 404
 * too, and a blob must not be taken for lost then.
 */
export const isGone = (error: unknown): boolean =>
  error instanceof Error && error.name === "NoSuchKey";

/** Translates an error of the SDK into one of the port. */
export const blobError = (cause: unknown, key: string): Error =>
  isGone(cause) ? new BlobNotFound(key, { cause }) : unavailable(cause);

export function unavailable(cause: unknown): BlobsUnavailable {
  if (cause instanceof BlobsUnavailable) return cause;
  const status = statusOf(cause);
  const isPassing =
    status === undefined ||
    status >= 500 ||
    PASSING_STATUSES.includes(status) ||
    PASSING_NAMES.includes((cause as Error).name);
  const isRefusal = !isPassing || isUnusable(cause);
  return new BlobsUnavailable(`S3: ${textOf(cause)}`, { cause, isRefusal });
}

/** Turns what a bucket refuses into an error of the port. */
export const answered = <T>(sent: Promise<T>): Promise<T> =>
  sent.catch((error: unknown) => {
    throw unavailable(error);
  });

/**
 * A list names no object. A server that misses one takes the bucket for it, because the path of the endpoint names the
 * bucket, too.
 */
export const listed = <T>(sent: Promise<T>): Promise<T> =>
  sent.catch((cause: unknown) => {
    if (!isGone(cause)) throw unavailable(cause);
    const text = "S3: the bucket is taken for an object: does its endpoint name the bucket, too?";
    throw new BlobsUnavailable(text, { cause, isRefusal: true });
  });

const UNUSABLE_NAMES = ["CredentialsProviderError", "InvalidBucketName", "EndpointError"];
const UNUSABLE_WORDS = /^(?:Region is missing$|Region not accepted|Path-style addressing)/;

/** Recognizes a client that cannot send any request: it has no credentials, or its region or its bucket has no valid name. */
export function isUnusable(cause: unknown): boolean {
  if (!(cause instanceof Error) || statusOf(cause) !== undefined) return false;
  return UNUSABLE_NAMES.includes(cause.name) || UNUSABLE_WORDS.test(cause.message);
}

interface Answered extends Error {
  readonly Code?: unknown;
  readonly $response?: { readonly headers?: Readonly<Record<string, string | undefined>> };
}

/**
 * Recognizes what another server says in the place of the bucket, such as a proxy whose server is away. A bucket says in XML what
 * is wrong. The answer to a HEAD has no text, so a 404 to one may be of either.
 */
export function isPage(cause: unknown): boolean {
  if (!(cause instanceof Error)) return false;
  const { Code, $response } = cause as Answered;
  const type = $response?.headers?.["content-type"];
  return Code === undefined && type !== undefined && !/xml/i.test(type);
}

/** What the SDK says in words for programmers. What it says of one place, as of a session that has expired, names the cause. */
const LACKING = new Map([
  ["Could not load credentials from any providers", "are no credentials"],
  ["Region is missing", "is no region"],
]);

function textOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const { name, message, code } = cause as ServiceError;
  if (message.includes("wrong version number"))
    return "the endpoint answers without TLS: is it http?";
  if (isPage(cause)) {
    const status = statusOf(cause) ?? 0;
    // A proxy says so of a bucket that is away for a while.
    const question = status >= 500 ? "" : ": is its endpoint right?";
    return `another server answers ${status} in the place of the bucket${question}`;
  }
  const lacking = LACKING.get(message);
  if (lacking !== undefined)
    return `there ${lacking} for the bucket, neither in the configuration nor in the usual places of AWS`;
  const word = typeof code === "string" ? code : name;
  return message === "" || message.includes(word) ? message || word : `${word}: ${message}`;
}
