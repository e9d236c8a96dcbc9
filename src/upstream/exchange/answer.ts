/**
 * Turns an HTTP answer into an {@link Outcome}: the edge at which statuses, headers and bytes get a meaning.
 *
 * The engine may rely on every answer being one JSON value in UTF-8. A success that is anything else (a login page, a
 * cut stream, server-sent events) counts as no answer at all. An error that is anything else still has a useful
 * status, so its text is put into the error envelope.
 */
import { isUtf8 } from "node:buffer";
import { type AnswerFacts, AnswerReading, factsIfJson } from "../../batch/answer-facts.ts";
import { NO_USAGE } from "../../batch/batch.ts";
import {
  type Outcome,
  putOnOneLine,
  type RefusalReason,
  type Refused,
} from "../../batch/outcome.ts";
import type { Clock } from "../../clock.ts";
import type { ErrorEnvelope } from "../../contract/error.ts";
import type { Redactor } from "../../redactor.ts";
import { isLong, STEP_BYTES, timeForMore } from "../../resources/time-slice.ts";
import { characterEnd, withoutBreaks, withoutBreaksIn } from "../../text/line-breaks.ts";
import { truncate } from "../../text/truncate.ts";
import { Utf8Check } from "../../text/utf8.ts";
import type { AnswerHeaders } from "../request.ts";
import { isLargerThanLimit, meantStatus, refusalOf } from "./refusal.ts";

export interface RawAnswer {
  readonly status: number;
  readonly headers: AnswerHeaders;
  readonly body: Buffer;
}

/** Groq says 498 when its tier "flex" is full, and Anthropic 529. */
const OVERLOADED = new Set([429, 498, 503, 529]);

/** Whether a server would answer, but cannot at this moment. */
export const isOverload = (status: number): boolean => OVERLOADED.has(status);

const MAX_EXCERPT_CHARACTERS = 120;
const MAX_LOGGED_CHARACTERS = 300;
const MAX_MESSAGE_CHARACTERS = 1_000;
/** The longest character takes four bytes. */
const BYTES_PER_CHARACTER = 4;

export interface AnswerRules {
  readonly clock: Clock;
  readonly redactor: Redactor;
}

/** The body has no secrets any more. `facts` is null when it is not one JSON value in UTF-8. */
export function outcomeOf(
  { status: headStatus, headers, body }: RawAnswer,
  facts: AnswerFacts | null,
  { clock, redactor }: AnswerRules,
): Outcome {
  const problem = problemOfHead({ status: headStatus, headers });
  if (problem !== null) return { kind: "broken", detail: problem };
  const status = facts === null ? headStatus : meantStatus({ status: headStatus, body });
  const givenId = header(headers, "x-request-id");
  // It is in each row of the results, and a header may have 16 kB.
  const requestId = givenId === null || givenId === "" ? null : truncate(redactor.text(givenId));
  const refused = refusalIn({ status, headers, body }, redactor);
  // A server that has taken a request has its address: the 404 in its 200 is about the line.
  const isAddressProved = status !== headStatus && refused?.reason === "address";
  if (refused !== null && !isAddressProved) {
    const mayPass = refused.reason === "address" && status >= 400;
    const passed = facts === null ? errorBody(status, body) : body;
    return { kind: "refused", ...refused, status, requestId, body: mayPass ? passed : null };
  }
  if (status >= 200 && status < 300 && facts === null) {
    return { kind: "broken", detail: `status ${status} with ${describe(body)}` };
  }
  const json = facts !== null ? body : errorBody(status, body);
  return isOverload(status) && !isLargerThanLimit({ status, body })
    ? {
        kind: "overloaded",
        status,
        requestId,
        body: json,
        retryAfterMs: retryAfterMs(headers, clock.nowMs()),
      }
    : {
        kind: "answered",
        status,
        requestId,
        body: json,
        ...(facts ?? { usage: NO_USAGE }),
      };
}

export interface ReadAnswer {
  readonly body: Buffer;
  /** It is null when the answer is not one JSON value in UTF-8. */
  readonly facts: AnswerFacts | null;
}

/** Reads an answer. Only a long one makes a promise, and its secrets are redacted on the way. */
export function readAnswer(body: Buffer, redactor: Redactor): ReadAnswer | Promise<ReadAnswer> {
  if (isLong(body)) return readLong(body, redactor);
  const facts = isUtf8(body) ? factsIfJson(body) : null;
  return { body: facts === null ? body : withoutBreaks(body), facts };
}

async function readLong(body: Buffer, redactor: Redactor): Promise<ReadAnswer> {
  const facts = await factsOfLong(body, redactor);
  return { body: facts === null ? body : await longWithoutBreaks(body), facts };
}

async function longWithoutBreaks(body: Buffer): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for (let at = 0, end = 0; at < body.length; at = end) {
    await timeForMore();
    end = characterEnd(body, at + STEP_BYTES);
    const piece = withoutBreaks(body.subarray(at, end));
    bytes += piece.length;
    pieces.push(piece);
  }
  return bytes === body.length ? body : joined(pieces, bytes);
}

/** Copies in steps. `Buffer.concat` would block the event loop. */
async function joined(pieces: readonly Buffer[], bytes: number): Promise<Buffer> {
  const whole = Buffer.allocUnsafeSlow(bytes);
  let at = 0;
  for (const piece of pieces) {
    await timeForMore();
    at += piece.copy(whole, at);
  }
  return whole;
}

/**
 * Returns the facts, and puts the answer on one line, because it goes into a file of lines. A second pass over a long
 * answer would cost too much.
 */
async function factsOfLong(body: Buffer, redactor: Redactor): Promise<AnswerFacts | null> {
  const reading = new AnswerReading();
  const utf8 = new Utf8Check();
  reading.begin(body);
  for (let at = 0; at < body.length; at += STEP_BYTES) {
    await timeForMore();
    const piece = body.subarray(at, at + STEP_BYTES);
    utf8.add(piece);
    const isRead = reading.advance(STEP_BYTES);
    redactor.mask(body, at, at + STEP_BYTES);
    if (isRead && reading.result() === null) return null;
    // The line breaks may go only after the reading: within a string they are an error, which it must see.
    putOnOneLine(piece);
  }
  while (!reading.advance(STEP_BYTES));
  return utf8.isValid ? reading.result() : null;
}

const WORDS: Readonly<Record<RefusalReason, string>> = {
  credentials: "it does not accept batchd's own credentials",
  quota: "batchd's account there has no credit or quota left",
  address: "what batchd is configured with is not the address of this API",
};

/** Says why an answer is not about the line, in words that any client may read; null when it is about the line. */
export function refusalIn(
  { status, headers, body }: RawAnswer,
  redactor: Redactor,
): Pick<Refused, "reason" | "detail" | "said"> | null {
  if (status >= 500) return null;
  const refusal = refusalOf({ status, contentType: header(headers, "content-type"), body });
  if (refusal === null) return null;
  const { reason, code } = refusal;
  const name = code === null ? "" : `, ${code}`;
  const said = redactor.parts(excerpt(body, MAX_LOGGED_CHARACTERS));
  return { reason, said, detail: redactor.text(`${WORDS[reason]} (status ${status}${name})`) };
}

const MAX_STATUS = 599;
/** Some servers name the charset of their text here. The clients of OpenAI take such an answer for what it is. */
const UNCOMPRESSED = /^\s*(?:(?:identity|utf-?8)\s*)?$/i;

/** Says why an answer with this head is no answer, whatever follows; null when it is one. */
export function problemOfHead({ status, headers }: Omit<RawAnswer, "body">): string | null {
  if (status > MAX_STATUS) return `status ${status}, which HTTP does not have`;
  const encoding = header(headers, "content-encoding");
  if (encoding === null || UNCOMPRESSED.test(encoding)) return null;
  return "an answer that is compressed, although none was asked to be";
}

export function header(headers: AnswerHeaders, name: string): string | null {
  const value = headers[name];
  return (typeof value === "string" ? value : value?.[0]) ?? null;
}

/** A longer time, of three years, is a date counted since 1970, as some gateways write it. */
const MAX_TIME_MS = 100_000_000_000;
/** A target that asks for a longer wait is asked again the next day. */
const MAX_WAIT_MS = 24 * 60 * 60 * 1000;

/**
 * Reads `retry-after-ms`, which is finer, before `retry-after`, which is in seconds or a date. A date is by the
 * clock of the server, as is the `date` of its answer. The clock of this machine may be wrong, so it counts only where
 * there is none.
 */
export function retryAfterMs(headers: AnswerHeaders, nowMs: number): number | null {
  const text = header(headers, "retry-after");
  const seconds = nonNegative(text);
  const ms =
    nonNegative(header(headers, "retry-after-ms")) ?? (seconds === null ? null : seconds * 1000);
  if (ms !== null && ms <= MAX_TIME_MS) return Math.min(ms, MAX_WAIT_MS);
  const atMs = ms ?? (text === null ? Number.NaN : Date.parse(text));
  if (Number.isNaN(atMs)) return null;
  const answeredAtMs = Date.parse(header(headers, "date") ?? "");
  const fromMs = Number.isNaN(answeredAtMs) ? nowMs : answeredAtMs;
  return Math.min(Math.max(0, atMs - fromMs), MAX_WAIT_MS);
}

const nonNegative = (text: string | null): number | null =>
  text !== null && /^\s*\d+(\.\d+)?\s*$/.test(text) ? Number(text) : null;

const textStart = (body: Buffer, characters: number) =>
  body.toString("utf8", 0, characters * BYTES_PER_CHARACTER);

function describe(body: Buffer): string {
  if (body.length === 0) return "an empty body";
  return `a body that is not one JSON value: ${excerpt(body, MAX_EXCERPT_CHARACTERS)}`;
}

const excerpt = (body: Buffer, characters: number) =>
  textStart(body, characters)
    .replaceAll(/[\p{C}\p{Z}\uFFFD]+/gu, " ")
    .trim()
    .slice(0, characters)
    .toWellFormed();

function errorBody(status: number, body: Buffer): Buffer {
  const text = textStart(body, MAX_MESSAGE_CHARACTERS).trim().slice(0, MAX_MESSAGE_CHARACTERS);
  const message = text === "" ? `HTTP ${status} from the model server` : text.toWellFormed();
  const envelope: ErrorEnvelope = {
    error: { message, type: "upstream_error", param: null, code: null },
  };
  return Buffer.from(withoutBreaksIn(JSON.stringify(envelope)));
}
