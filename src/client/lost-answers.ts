/** Tells requests without an answer, or with half of one, from one another. */
import { APIConnectionTimeoutError } from "openai";

/** What has taken the connection, and perhaps the request, is there. */
export const CLOSED: readonly string[] = ["UND_ERR_SOCKET", "ECONNRESET", "EPIPE"];

/** Returns the code of the innermost error, such as `ECONNREFUSED`, or its words. */
export function reasonOf(error: Error): string {
  const { cause, message } = error as NodeJS.ErrnoException & { cause?: unknown };
  if (!(cause instanceof Error)) return message;
  const { code } = cause as NodeJS.ErrnoException;
  // `fetch` has no word for a proxy that wants credentials.
  return cause.cause instanceof Error ? reasonOf(cause) : (code ?? (cause.message || message));
}

/** Whether the time for an answer is over. A connection that cannot be made in time is another matter. */
export const isTimedOut = (error: unknown): boolean =>
  error instanceof APIConnectionTimeoutError &&
  (error.cause === undefined || isAnswerLate(error.cause));

const isAnswerLate = (cause: unknown): boolean =>
  cause instanceof Error &&
  (cause.name === "AbortError" || reasonOf(cause) === "UND_ERR_HEADERS_TIMEOUT");

/** Whether a request that failed may have come to the server. */
export const isAnswerLost = (error: unknown): boolean =>
  error instanceof Error && (isAnswerLate(error) || CLOSED.includes(reasonOf(error)));

/** A body that breaks off is a TypeError of `fetch`, whose cause is an error of the socket. */
export const isBrokenOff = (error: unknown): error is TypeError =>
  error instanceof TypeError && error.cause instanceof Error;
