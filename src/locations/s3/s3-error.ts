/**
 * Translates errors of the SDK into those of the port. The texts of a server pass. Addresses do not, because clients read the
 * messages.
 */
import {
  isMissing,
  isNoSuchUpload,
  isPage,
  isUnusable,
  NotFromBucket,
  statusOf,
  unavailable,
} from "../../blobs/s3-error.ts";
import { LocationError, type LocationFailure } from "../location.ts";

/** Only reading has a condition: the tag of the object. */
const PRECONDITION_FAILED = 412;
/**
 * What passes with time, although it looks like a wrong request: a wrong clock, until it is set; a bucket that is full, in the words
 * of Ceph and versitygw, and of MinIO; bytes that were changed or cut off on their way; a machine that does not say its role, as one
 * that has just started.
 */
const PASSING_NAMES = [
  "RequestTimeTooSkewed",
  "QuotaExceeded",
  "XMinioAdminBucketQuotaExceeded",
  "BadDigest",
  "IncompleteBody",
  "XAmzContentSHA256Mismatch",
  "CredentialsProviderError",
];

/** `what` names the object in the words of clients. An aborted call throws the reason of its signal. */
export function s3Error(error: unknown, what: string, signal: AbortSignal): unknown {
  if (signal.aborted) return signal.reason;
  const cause = blobCause(error);
  if (cause instanceof LocationError || !(cause instanceof Error)) return cause;
  if (isMissing(cause) && !isPage(cause)) {
    return new LocationError("not_found", `there is no ${what}`, { cause });
  }
  if (isNoSuchUpload(cause)) {
    return new LocationError("unavailable", `${what}: its upload was aborted`, { cause });
  }
  const status = statusOf(cause);
  if (status === PRECONDITION_FAILED) {
    return new LocationError("unavailable", `${what} changed while it was read`, { cause });
  }
  return new LocationError(failureOf(cause, status), `${what}: ${textOf(cause, status)}`, {
    cause,
  });
}

function failureOf(cause: Error, status: number | undefined): LocationFailure {
  if (PASSING_NAMES.includes(cause.name)) return "unavailable";
  if (status === 401 || status === 403) return "forbidden";
  return unavailable(cause).isRefusal && !isPage(cause) ? "refused" : "unavailable";
}

/**
 * Translates errors of writing. Some servers answer NoSuchKey to a completion that the SDK repeats while they still join the
 * parts of a large object, so it passes with time.
 */
export function writeError(error: unknown, what: string, signal: AbortSignal): unknown {
  if (signal.aborted || !isMissing(error) || isPage(error)) return s3Error(error, what, signal);
  return new LocationError("unavailable", `${what}: the server does not find its upload`, {
    cause: error,
  });
}

/** Errors of shared code have the SDK's error as their cause. */
const blobCause = (error: unknown) =>
  error instanceof Error && /^Blobs?[A-Z]/.test(error.name) ? (error.cause ?? error) : error;

/** What the SDK tells its programmers of an answer that is no XML. */
const SDK_HINT = "Deserialization error: ";

function textOf(cause: Error, status: number | undefined): string {
  if (cause.name === "CredentialsProviderError") return "batchd has no credentials for the bucket";
  if (cause.message === "Region is missing") return "batchd has no region for the bucket";
  if (isUnusable(cause))
    return `batchd cannot ask the bucket as it is configured: ${cause.message}`;
  // An answer without a body, as that to a HEAD, has no text.
  if (status !== undefined) {
    if (isPage(cause)) return `another server answers ${status} in its place`;
    const { name } = cause;
    const [message = ""] = cause.message.split(SDK_HINT, 1);
    const words = message.includes(name) ? message : `${name} ${message}`.trim();
    return `the server answers ${status}: ${words}`;
  }
  if (cause.name === "AddressRefused") return "the server is not known, or not at a public address";
  if (cause instanceof NotFromBucket)
    return `another server answers in its place: ${cause.message}`;
  if (cause.name === "BlobTooShort") return "it ends before the length that the server gave for it";
  const { code } = cause as NodeJS.ErrnoException;
  return `the server does not answer (${typeof code === "string" ? code : cause.name})`;
}
