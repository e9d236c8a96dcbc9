/**
 * The outcomes of an attempt, and the rows that they become in the output or error file.
 *
 * Bodies stay bytes, so numbers, key order and escapes survive. A row is one line, so the newlines between the tokens
 * of an answer become spaces. JSON has no newlines inside strings. What else some readers take for a line break is
 * escaped (`line-breaks.ts`).
 */

import { QUOTE, skipString } from "../text/json-tokens.ts";
import { withoutBreaks, withoutBreaksIn } from "../text/line-breaks.ts";
import { type AnswerNames, NO_USAGE, type Usage } from "./batch.ts";
import type { NoAnswerCode } from "./codes.ts";
import { randomHexId } from "./random-id.ts";

export type Outcome =
  | Answered
  | Overloaded
  | Refused
  /** The connection failed: refused, unknown host, TLS failure. The server has received nothing. */
  | { readonly kind: "unreachable"; readonly detail: string }
  /** The connection broke, or the answer is not HTTP or not JSON. */
  | { readonly kind: "broken"; readonly detail: string }
  | TimedOut
  /** batchd ended the attempt itself, for a drain, a cancel or a lost lease. The line is not at fault. */
  | { readonly kind: "interrupted" };

export const INTERRUPTED = { kind: "interrupted" } as const satisfies Outcome;

export interface TimedOut {
  readonly kind: "timed_out";
  readonly afterMs: number;
  /** The part that did not come in time; the whole answer when it is left out. */
  readonly waitingFor?: "first_byte" | "more";
}

interface Answer {
  readonly status: number;
  /** The upstream's own id for the exchange, when it sent one. */
  readonly requestId: string | null;
  /** The bytes of one JSON value, in which nothing but newlines between tokens breaks a line. */
  readonly body: Buffer;
}

export interface Answered extends Answer {
  readonly kind: "answered";
  /** The tokens that the answer reports. */
  readonly usage: Usage;
  /** It is left out where the answer was not read for them. */
  readonly names?: AnswerNames | undefined;
}

/** A 429, 498, 503 or 529: the upstream would answer, but not now. */
export interface Overloaded extends Answer {
  readonly kind: "overloaded";
  /** The pause that the upstream asked for. */
  readonly retryAfterMs: number | null;
}

/** The part of the operator's configuration that an upstream refuses. */
export type RefusalReason = "credentials" | "quota" | "address";

/** An answer about the operator's configuration instead of the line. */
export interface Refused {
  readonly kind: "refused";
  readonly reason: RefusalReason;
  readonly status: number;
  readonly requestId: string | null;
  /** A description that is safe for everyone: it holds nothing of the answer but its status and code. */
  readonly detail: string;
  /** The beginning of the answer, for the operator's log, with all secrets redacted. */
  readonly said: string;
  /** The answer itself; null when it may hold details of the operator's account. */
  readonly body: Buffer | null;
}

/** The outcomes that end a line. */
export type FinalOutcome = Exclude<Outcome, { kind: "interrupted" }>;

/**
 * Whether a gateway may have answered so because the server behind it gave no answer. LiteLLM says 408 then, and Cloudflare
 * 520 to 527, or 530 where it does not find the server.
 */
export const isOfGateway = (status: number): boolean =>
  status === 408 ||
  status === 502 ||
  status === 504 ||
  (status >= 520 && status <= 527) ||
  status === 530;

export const isSuccess = (outcome: FinalOutcome): boolean =>
  outcome.kind === "answered" && outcome.status >= 200 && outcome.status < 300;

/** The reason for which a line has no answer: the `error` of its row in the error file. */
export interface NoAnswer {
  readonly code: NoAnswerCode;
  readonly message: string;
}

export const BATCH_CANCELLED: NoAnswer = {
  code: "batch_cancelled",
  message: "This request was not executed because the batch was cancelled.",
};

export const BATCH_EXPIRED: NoAnswer = {
  code: "batch_expired",
  message: "This request could not be executed before the completion window expired.",
};

/** The line that a row belongs to. */
export interface InputLine {
  readonly lineNumber: number;
  /** The id as the JSON string of the input; null when the input line is not known any more. */
  readonly customId: Buffer | null;
}

/**
 * Returns one row of the output or the error file, newline included, in pieces, so that a large answer is not copied.
 */
export function outcomeLine(line: InputLine, outcome: FinalOutcome): readonly Buffer[] {
  if (outcome.kind !== "answered" && outcome.kind !== "overloaded") {
    const hasBody = outcome.kind === "refused" && outcome.body !== null;
    if (!hasBody) return [noAnswerLine(line, noAnswerOf(outcome))];
    return outcomeLine(line, {
      ...outcome,
      kind: "answered",
      body: outcome.body,
      usage: NO_USAGE,
    });
  }
  const requestId = withoutBreaksIn(JSON.stringify(outcome.requestId ?? randomHexId()));
  const response = `{"status_code":${outcome.status},"request_id":${requestId},"body":`;
  const body = onOneLine(outcome.body);
  if (body.length <= MAX_COPIED_BYTES) return [join(line, response, body)];
  return [join(line, response, NOTHING), body, RESPONSE_END];
}

/** Returns the row of a line without an answer. */
export function noAnswerLine(line: InputLine, error: NoAnswer): Buffer {
  return join(line, `null,"error":${withoutBreaksIn(JSON.stringify(error))}}\n`, NOTHING);
}

const ID_START = '{"id":"batch_req_';
/** The digits of the line number in the id of a row. */
const NUMBER_DIGITS = 8;

/**
 * Makes the id of a row: the number of its line and random digits, in hexadecimal. A reader of a result file can
 * therefore tell which line of the input each row belongs to.
 */
const rowId = (lineNumber: number): string =>
  lineNumber.toString(16).padStart(NUMBER_DIGITS, "0") + randomHexId().slice(NUMBER_DIGITS);

/** Returns the line number in the id of a row; null when the row has none. Other servers have other ids. */
export function lineNumberOf(row: Buffer): number | null {
  const head = row.toString("latin1", 0, ID_START.length + NUMBER_DIGITS);
  const digits = head.slice(ID_START.length);
  if (!head.startsWith(ID_START) || !/^[0-9a-f]{8}$/.test(digits)) return null;
  return Number.parseInt(digits, 16);
}

/** The parts of a row, as JSON; null in place of a part that is null. */
interface RowParts {
  readonly customId: Buffer;
  readonly response: Buffer | null;
  readonly error: Buffer | null;
}

const CUSTOM_ID_KEY = Buffer.from('","custom_id":');
const RESPONSE_KEY = Buffer.from(',"response":');
const NO_RESPONSE = Buffer.from('null,"error":');
const NO_ERROR = Buffer.from(',"error":null}');

/** Finds the custom id of a row; null in a text that is no row. Its end may lie before its start in a damaged one. */
function customIdIn(row: Buffer): { readonly from: number; readonly to: number } | null {
  const idEnd = row.indexOf(CUSTOM_ID_KEY, ID_START.length);
  if (idEnd === -1) return null;
  const from = idEnd + CUSTOM_ID_KEY.length;
  const isText = row[from] === QUOTE;
  return { from, to: isText ? skipString(row, from + 1, row.length) : from + NULL.length };
}

/** Returns the row of another line that gets the same answer; of the beginning of a row, the beginning. */
export function rowFor({ lineNumber, customId }: InputLine, row: Buffer): Buffer {
  const { to } = customIdIn(row) ?? { to: -1 };
  if (to < 0) throw new Error("a record of the journal is no row");
  const head = Buffer.from(`${ID_START}${rowId(lineNumber)}","custom_id":`);
  return Buffer.concat([head, withoutBreaks(customId ?? NULL), row.subarray(to)]);
}

/** Finds the parts of a row as {@link outcomeLine} writes it; null for any other text. */
export function rowParts(row: Buffer): RowParts | null {
  const end = row.lastIndexOf("}") + 1;
  const found = customIdIn(row);
  if (found === null) return null;
  const { from, to } = found;
  const responseAt = to + RESPONSE_KEY.length;
  if (to < from || row.compare(RESPONSE_KEY, 0, RESPONSE_KEY.length, to, responseAt) !== 0)
    return null;
  const customId = row.subarray(from, to);
  const rest = row.subarray(responseAt, end);
  if (rest.subarray(0, NO_RESPONSE.length).equals(NO_RESPONSE)) {
    return { customId, response: null, error: rest.subarray(NO_RESPONSE.length, -1) };
  }
  if (!rest.subarray(-NO_ERROR.length).equals(NO_ERROR)) return null;
  return { customId, response: rest.subarray(0, -NO_ERROR.length), error: null };
}

const NOTHING = Buffer.alloc(0);
const NULL = Buffer.from("null");
/** The end of a row with a response. */
export const RESPONSE_END = Buffer.from('},"error":null}\n');
/** A larger body is written as a piece of its own. Below this size a copy costs less than one more piece. */
const MAX_COPIED_BYTES = 4 * 1024;

/** Joins the beginning of a row, and its body and end where there is a body, in one buffer. */
function join(line: InputLine, response: string, body: Buffer): Buffer {
  const customId = withoutBreaks(line.customId ?? NULL);
  const head = `${ID_START}${rowId(line.lineNumber)}","custom_id":`;
  const middle = `,"response":${response}`;
  const end = body === NOTHING ? NOTHING : RESPONSE_END;
  const bytes = Buffer.allocUnsafe(
    head.length + customId.length + Buffer.byteLength(middle) + body.length + end.length,
  );
  let at = bytes.write(head, 0, "latin1");
  at += customId.copy(bytes, at);
  at += bytes.write(middle, at, "utf8");
  at += body.copy(bytes, at);
  end.copy(bytes, at);
  return bytes;
}

/** Returns the error in the row of a line without an answer. */
export function noAnswerOf(outcome: Exclude<FinalOutcome, Answered | Overloaded>): NoAnswer {
  switch (outcome.kind) {
    case "refused":
      return {
        code: "upstream_refused",
        message: `The model server refused this request: ${outcome.detail}.`,
      };
    case "timed_out":
      return {
        code: "request_timeout",
        message: describeTimeout(outcome),
      };
    case "unreachable":
      return {
        code: "upstream_unreachable",
        message: `The model server could not be reached: ${outcome.detail}.`,
      };
    case "broken":
      return {
        code: "upstream_error",
        message: `The model server gave no usable answer: ${outcome.detail}.`,
      };
  }
}

function describeTimeout({ afterMs, waitingFor }: TimedOut): string {
  const seconds = `${afterMs / 1000} seconds`;
  switch (waitingFor) {
    case "first_byte":
      return `The model did not begin to answer within ${seconds}.`;
    case "more":
      return `The model began to answer, then sent nothing more for ${seconds}.`;
    default:
      return `The model did not answer within ${seconds}.`;
  }
}

/** Returns a valid JSON text without its line breaks. */
export function onOneLine(json: Buffer): Buffer {
  if (!json.includes(0x0a) && !json.includes(0x0d)) return json;
  const flat = Buffer.from(json);
  putOnOneLine(flat);
  return flat;
}

/** Replaces the line breaks of a valid JSON text in place. */
export function putOnOneLine(json: Buffer): void {
  for (let at = 0; at < json.length; at++) {
    if (json[at] === 0x0a || json[at] === 0x0d) json[at] = 0x20;
  }
}
