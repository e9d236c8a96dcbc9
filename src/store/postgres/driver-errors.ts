/** Classifies the errors of PostgreSQL and of its driver: what they mean for a call. */
import { DatabaseError, DrizzleQueryError } from "./drizzle.ts";

/** Codes of a serialisation failure and of a deadlock: another transaction was in the way. */
const IN_THE_WAY = /^(?:40001|40P01)$/;
/**
 * Codes of lost connections, missing resources, shutdowns, failures of the disk, failovers (a standby takes no writes),
 * canceled statements, and transactions that were ended because they did nothing or took too long. `XX001`
 * and `XX002` are damage that the server has found in its own files, which is no fault of any batch. `XX000` is any other
 * internal error, which the statement of one batch may cause each time. `40003` leaves open whether a commit was made: a
 * database of several machines says so. `54000` says that the server has no numbers left for transactions: no text of a client
 * comes to a limit of an index.
 */
const AWAY = /^(?:08|53|57|58)|^(?:25006|25P03|25P04|40003|54000|55P03|XX001|XX002)$/;
/**
 * Codes of refused logins, databases that are missing or closed, and tables that are missing or that the user may not
 * use. An operator has to mend them, and no batch is at fault.
 */
const MISCONFIGURED = /^(?:28|3D|3F)|^(?:42501|42P01|55000)$/;
const CONSTRAINT = /^23/;
/**
 * Codes of answers that end the connection, or leave the end of the transaction open. The word for a connection that ends (`FATAL`)
 * is in the language of the server.
 */
const FATAL = /^(?:08|28|57P|25P03|25P04|40003|53300|3D000)/;
const NETWORK =
  /^(?:ECONNREFUSED|ECONNRESET|ECONNABORTED|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ENETDOWN|ENOENT)$/;
/** Messages of the driver for errors that have no code. */
const NO_CONNECTION =
  /^(?:Connection terminated|timeout expired|timeout exceeded|Query read timeout|Client has encountered a connection error|Client was closed)/;

/** The error for a new connection that leads to a standby. */
export class StandbyFound extends Error {
  override readonly name = "StandbyFound";

  constructor() {
    super("the server of the connection is a standby");
  }
}

/**
 * The error for a connection that the server, or a pooler before it, has refused to make. No statement is at fault then, whatever
 * the code: poolers of hosts say with `XX000` that they have no room, or that the database sleeps.
 */
class ConnectionRefused extends Error {
  override readonly name = "ConnectionRefused";
}

/** Returns what is to be thrown where no connection could be made. */
export const connectionError = (cause: unknown): unknown =>
  cause instanceof DatabaseError && !isUnavailable(cause)
    ? new ConnectionRefused(cause.message, { cause })
    : cause;

/** Drizzle wraps every error of the driver, in a text that has the values of the statement. */
export const unwrapped = (thrown: unknown): unknown =>
  thrown instanceof DrizzleQueryError && thrown.cause !== undefined ? thrown.cause : thrown;

const codeOf = (cause: unknown): string =>
  (cause instanceof Error ? (cause as NodeJS.ErrnoException).code : undefined) ?? "";

const isAnswer = (cause: unknown): boolean => cause instanceof DatabaseError;

const hasNoConnection = (cause: unknown): boolean =>
  cause instanceof Error &&
  !isAnswer(cause) &&
  (NETWORK.test(codeOf(cause)) || NO_CONNECTION.test(cause.message));

/**
 * Returns whether the transaction has certainly changed nothing and the connection can be used again: the server refused
 * a statement, or our own code threw. A fatal answer may come after a commit.
 */
export const isRolledBack = (cause: unknown): boolean =>
  isAnswer(cause) ? !FATAL.test(codeOf(cause)) : !hasNoConnection(cause);

/** Returns whether the driver has stopped to wait for a statement, which may still run. */
export const isTimeout = (cause: unknown): boolean =>
  cause instanceof Error && !isAnswer(cause) && cause.message === "Query read timeout";

/** Recognizes a server that takes no writes. Another one may have taken its place, which only a new connection reaches. */
export const isStandby = (cause: unknown): boolean => isAnswer(cause) && codeOf(cause) === "25006";

/**
 * Recognizes a counter that gives numbers which rows have: logical replication leaves all counters behind. Each try takes
 * one number more.
 */
const isCounterBehind = (cause: unknown): boolean =>
  cause instanceof DatabaseError && cause.code === "23505" && /_pkey$/.test(cause.constraint ?? "");

export const isUnavailable = (cause: unknown): boolean =>
  hasNoConnection(cause) ||
  cause instanceof StandbyFound ||
  cause instanceof ConnectionRefused ||
  isCounterBehind(cause) ||
  (isAnswer(cause) && [IN_THE_WAY, AWAY, MISCONFIGURED].some((codes) => codes.test(codeOf(cause))));

/** Returns whether the next attempt may succeed within a second. */
export const isPassing = (cause: unknown): boolean =>
  isUnavailable(cause) && !MISCONFIGURED.test(codeOf(cause));

export const isForbidden = (cause: unknown): boolean =>
  isAnswer(cause) && CONSTRAINT.test(codeOf(cause));
