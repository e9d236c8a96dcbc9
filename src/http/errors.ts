/** Turns every thrown error into the one error envelope. No other file may write one. */
import type { ContentfulStatusCode } from "hono/utils/http-status";
import type { ErrorEnvelope } from "../contract/error.ts";
import { CATALOGUE, PublicError } from "../errors.ts";
import { systemCodes } from "../system-code.ts";
import type { AppContext } from "./context.ts";
import { answerJson } from "./json.ts";

/** The faults of the machine and of what it depends on, by the codes of errors. */
const SHORTAGES: readonly {
  readonly codes: readonly unknown[];
  readonly message: string;
  readonly retryAfterMs?: number;
  /** It is left out where the server cannot serve anyone. */
  readonly error?: "rate_limit_exceeded";
}[] = [
  {
    codes: ["ENOSPC", "EDQUOT", "SQLITE_FULL"],
    message:
      "The disk of the server is full. Nothing was stored; try again when its operator has made room.",
  },
  {
    codes: ["EMFILE", "ENFILE"],
    message: "The server has too many files open. Please try again.",
    retryAfterMs: 1_000,
  },
  {
    // The bucket is away, overloaded, or refuses the server; or the disk of the files fails, or takes no writes.
    codes: ["BLOBS_UNAVAILABLE", "EIO", "EROFS", "ESTALE"],
    message:
      "The storage of the server does not answer as it should. Nothing is lost; please try again in some seconds.",
    retryAfterMs: 5_000,
  },
  {
    // A database on another machine is away.
    codes: ["STORE_UNAVAILABLE"],
    message: "The server cannot reach its database at the moment. Please try again.",
    retryAfterMs: 2_000,
  },
  {
    codes: ["STORE_BUSY"],
    message: "Too many requests of the project wait for the database. Please try again.",
    retryAfterMs: 1_000,
    error: "rate_limit_exceeded",
  },
  {
    codes: ["STORE_DAMAGED"],
    message: "The database of the server is damaged, and its operator has to restore it.",
    retryAfterMs: 60_000,
  },
  {
    // Another process, perhaps a backup, holds the database of SQLite.
    codes: ["SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED"],
    message: "The server is busy. Please try again.",
  },
];

export const envelopeOf = ({ error, message, param }: PublicError): ErrorEnvelope => {
  const { type, code } = CATALOGUE[error];
  return { error: { message, type, param, code } };
};

export function answerError(c: AppContext, thrown: unknown): Response {
  const error = toPublicError(thrown, c.get("requestId"));
  const { status } = CATALOGUE[error.error];
  for (const [name, value] of retryHeadersOf(error)) c.header(name, value);
  return answerJson(c, envelopeOf(error), status as ContentfulStatusCode);
}

/**
 * Clients repeat every 409 and 503 unless a header forbids it. A batch that has ended answers 409 for ever, and a key in use
 * only for a moment.
 */
export function retryHeadersOf({
  error,
  retryAfterMs,
}: PublicError): [name: string, value: string][] {
  if (retryAfterMs !== null) return retryAfterHeaders(retryAfterMs);
  switch (error) {
    case "conflict":
    case "delivery_in_progress":
    case "outcome_unknown":
    case "quota_exceeded":
      return [["x-should-retry", "false"]];
    case "idempotency_key_in_use":
      return [
        ["x-should-retry", "true"],
        ["retry-after", "1"],
      ];
    default:
      return [];
  }
}

/** The pause in whole seconds for all clients, and in milliseconds for the official ones. */
const retryAfterHeaders = (ms: number): [name: string, value: string][] => [
  ["retry-after", String(Math.ceil(ms / 1000))],
  ["retry-after-ms", String(Math.ceil(ms))],
];

function toPublicError(thrown: unknown, requestId: string): PublicError {
  if (thrown instanceof PublicError) return thrown;
  const thrownCodes = systemCodes(thrown);
  const shortage = SHORTAGES.find(({ codes }) => thrownCodes.some((code) => codes.includes(code)));
  if (shortage !== undefined) {
    const { message, retryAfterMs = null, error = "unavailable" } = shortage;
    return new PublicError(error, message, { cause: thrown, retryAfterMs });
  }
  return new PublicError(
    "internal",
    `The server had an error processing your request. Sorry about that! You can retry your request. If it fails again, tell the operator of this server the request ID ${requestId}.`,
    { cause: thrown },
  );
}
