/**
 * Decides when failing work is given up. A failure counts, durably, against its chunk or its batch until there is
 * progress. A shortage of the machine (disk, memory, file descriptors, the database) must never count: no batch
 * caused it, and all work waits for its end.
 */
import type { NoAnswer } from "../../batch/outcome.ts";
import { systemCodes } from "../../system-code.ts";

/**
 * Failures after which work is given up. The lease puts half a minute between two tries, so a fault of a few minutes
 * costs no line.
 */
export const MAX_FAILURES = 5;

const PASSING_CODES = new Set([
  "BLOBS_UNAVAILABLE",
  "EAGAIN",
  "EBUSY",
  "EDQUOT",
  "EMFILE",
  "ENFILE",
  "ENOMEM",
  "ENOSPC",
  "EROFS",
  "SQLITE_BUSY",
  "SQLITE_CANTOPEN",
  "SQLITE_FULL",
  "SQLITE_IOERR",
  "SQLITE_LOCKED",
  "SQLITE_NOMEM",
  "SQLITE_READONLY",
  "STORE_BUSY",
  "STORE_DAMAGED",
  "STORE_UNAVAILABLE",
]);

/** Whether it is the machine that failed, not the work. */
export const isPassing = (thrown: unknown): boolean =>
  thrown instanceof NotWritten || codesOf(thrown).some((code) => PASSING_CODES.has(code));

/** A write of bytes that failed, for any reason. The cause is never the bytes themselves. */
export class NotWritten extends Error {
  override readonly name = "NotWritten";
}

/** Whether the store will never take the write: a rule of the database forbids it. */
export const isRefusal = (thrown: unknown): boolean =>
  codesOf(thrown).some((code) => code === "SQLITE_CONSTRAINT" || code === "STORE_REFUSAL");

/** SQLite has longer codes below each family, such as SQLITE_IOERR_WRITE. */
const codesOf = (thrown: unknown): string[] =>
  systemCodes(thrown).map((code) => code.split("_").slice(0, 2).join("_"));

export const GIVEN_UP: NoAnswer = {
  code: "internal_error",
  message: "The server failed to process this request in several tries.",
};

export const ANSWER_LOST: NoAnswer = {
  code: "answer_lost",
  message:
    "The answer to this request was damaged where it was stored, and the completion window left no time to ask again.",
};

export const SOURCE_ANSWER_LOST: NoAnswer = {
  code: "answer_lost",
  message:
    "This request was answered in the batch whose results were to be merged, and the answer was damaged where it was stored.",
};

export const DUPLICATES_TOO_LARGE: NoAnswer = {
  code: "duplicates_too_large",
  message:
    "This request was not sent because its body came before, and with its answer the rows of such requests would have more bytes than the server takes in one file.",
};

export const unreadableLine = (lineNumber: number): NoAnswer => ({
  code: "input_unreadable",
  message: `Line ${lineNumber} of the input file could not be read any more.`,
});
