/**
 * What became of an attempt, and how a line ends in the output or error file.
 *
 * Bodies stay bytes: an answer is put on one line by turning the newlines between its tokens into
 * spaces (inside strings JSON has none), so numbers, key order and escapes survive.
 */

import { NO_USAGE, type Usage } from "./batch.ts";
import type { NoAnswerCode } from "./codes.ts";
import { randomHexId } from "./random-id.ts";

export type Outcome =
  | Answered
  | Overloaded
  | Refused
  /** No connection: refused, unknown host, TLS failure. Nothing was sent. */
  | { readonly kind: "unreachable"; readonly detail: string }
  /** A connection that broke, or an answer that is not HTTP or not JSON. */
  | { readonly kind: "broken"; readonly detail: string }
  | TimedOut
  /** Our own drain, cancel or lost lease: never the line's fault. */
  | { readonly kind: "interrupted" };

export interface TimedOut {
  readonly kind: "timed_out";
  readonly afterMs: number;
  /** Left out: the whole answer. */
  readonly waitingFor?: "first_byte" | "more";
}

interface Answer {
  readonly status: number;
  /** The upstream's own id for the exchange, when it sent one. */
  readonly requestId: string | null;
  /** One JSON value. */
  readonly body: Buffer;
}

export interface Answered extends Answer {
  readonly kind: "answered";
  /** The tokens that it reports. */
  readonly usage: Usage;
}

/** 429, 503 or 529: it would answer, but not now. */
export interface Overloaded extends Answer {
  readonly kind: "overloaded";
  /** How long the upstream asked to be left alone. */
  readonly retryAfterMs: number | null;
}

/** What of the operator's own an upstream does not accept. */
export type RefusalReason = "credentials" | "quota" | "address";

/** An answer about what the operator configured, and not about the line. */
export interface Refused {
  readonly kind: "refused";
  readonly reason: RefusalReason;
  readonly status: number;
  readonly requestId: string | null;
  /** What may be said of it to anybody: nothing of the answer but its status and code. */
  readonly detail: string;
  /** The beginning of the answer, for the operator's log; without secrets, and without parts of them. */
  readonly said: string;
  /** The answer itself, where it holds nothing of the operator's; null where it may. */
  readonly body: Buffer | null;
}

/** Outcomes that end a line. */
export type FinalOutcome = Exclude<Outcome, { kind: "interrupted" }>;

export const isSuccess = (outcome: FinalOutcome): boolean =>
  outcome.kind === "answered" && outcome.status >= 200 && outcome.status < 300;

/** Why a line has no answer at all: the `error` of its row in the error file. */
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

/**
 * One line, newline included, of the output or the error file, in pieces: a large answer is not copied.
 * `customId` is the JSON string of the input line.
 */
export function outcomeLine(customId: Buffer, outcome: FinalOutcome): readonly Buffer[] {
  if (outcome.kind !== "answered" && outcome.kind !== "overloaded") {
    const isShown = outcome.kind === "refused" && outcome.body !== null;
    if (!isShown) return [noAnswerLine(customId, noAnswerOf(outcome))];
    return outcomeLine(customId, {
      ...outcome,
      kind: "answered",
      body: outcome.body,
      usage: NO_USAGE,
    });
  }
  const requestId = JSON.stringify(outcome.requestId ?? randomHexId());
  const response = `{"status_code":${outcome.status},"request_id":${requestId},"body":`;
  const body = onOneLine(outcome.body);
  if (body.length <= MAX_COPIED_BYTES) return [join(customId, response, body)];
  return [join(customId, response, NOTHING), body, RESPONSE_END];
}

/** `customId` is null when the input line is not known any more. */
export function noAnswerLine(customId: Buffer | null, error: NoAnswer): Buffer {
  return join(customId ?? NULL, `null,"error":${JSON.stringify(error)}}\n`, NOTHING);
}

const NOTHING = Buffer.alloc(0);
const NULL = Buffer.from("null");
const RESPONSE_END = Buffer.from('},"error":null}\n');
/** A copy of this much costs less than one more piece to write. */
const MAX_COPIED_BYTES = 4 * 1024;

/** The beginning of a row, and the rest of it too where there is a body: all in one piece. */
function join(customId: Buffer, response: string, body: Buffer): Buffer {
  const head = `{"id":"batch_req_${randomHexId()}","custom_id":`;
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

function noAnswerOf(outcome: Exclude<FinalOutcome, Answered | Overloaded>): NoAnswer {
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

/** A valid JSON text without its line breaks. */
export function onOneLine(json: Buffer): Buffer {
  if (!json.includes(0x0a) && !json.includes(0x0d)) return json;
  const flat = Buffer.from(json);
  putOnOneLine(flat);
  return flat;
}

/** In place. */
export function putOnOneLine(json: Buffer): void {
  for (let at = 0; at < json.length; at++) {
    if (json[at] === 0x0a || json[at] === 0x0d) json[at] = 0x20;
  }
}
