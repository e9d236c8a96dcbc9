/**
 * Translates errors of the SDK into those of the port. The texts of a server pass. Addresses do not, because clients read the
 * messages.
 */
import {
  isMissing,
  isNoSuchUpload,
  isUnusable,
  statusOf,
  unavailable,
} from "../../blobs/s3-client.ts";
import { LocationError } from "../location.ts";

/** Only reading has a condition: the tag of the object. */
const PRECONDITION_FAILED = 412;

/** `what` names the object in the words of clients. An aborted call throws the reason of its signal. */
export function s3Error(error: unknown, what: string, signal: AbortSignal): unknown {
  if (signal.aborted) return signal.reason;
  const cause = blobCause(error);
  if (cause instanceof LocationError || !(cause instanceof Error)) return cause;
  if (isMissing(cause)) return new LocationError("not_found", `there is no ${what}`, { cause });
  if (isNoSuchUpload(cause)) {
    return new LocationError("unavailable", `${what}: its upload was aborted`, { cause });
  }
  const status = statusOf(cause);
  if (status === PRECONDITION_FAILED) {
    return new LocationError("unavailable", `${what} changed while it was read`, { cause });
  }
  const { isRefusal } = unavailable(cause);
  const failure =
    status === 401 || status === 403 ? "forbidden" : isRefusal ? "refused" : "unavailable";
  return new LocationError(failure, `${what}: ${textOf(cause, status)}`, { cause });
}

/**
 * Translates errors of writing. Some servers answer NoSuchKey to a completion that the SDK repeats while they still join the
 * parts of a large object, so it passes with time.
 */
export function writeError(error: unknown, what: string, signal: AbortSignal): unknown {
  if (signal.aborted || !isMissing(error)) return s3Error(error, what, signal);
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
    const { name } = cause;
    const [message = ""] = cause.message.split(SDK_HINT, 1);
    const words = message.includes(name) ? message : `${name} ${message}`.trim();
    return `the server answers ${status}: ${words}`;
  }
  if (cause.name === "AddressRefused") return "the server is not known, or not at a public address";
  const { code } = cause as NodeJS.ErrnoException;
  return `the server does not answer (${typeof code === "string" ? code : cause.name})`;
}
