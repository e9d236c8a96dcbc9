/**
 * Reads one row of a result file into the cells of a table: the parts of an answer that a table can show. JSON lines have
 * all of it. The rows may be those of any server with OpenAI's API.
 */
import { lineNumberOf } from "../batch/outcome.ts";
import { readUsage } from "../batch/usage.ts";
import { integerIn, isPresent, jsonIn, MemberFinder, stringIn } from "./members.ts";

export interface ResultRow {
  readonly custom_id: string | null;
  readonly line: number | null;
  readonly status: number | null;
  readonly model: string | null;
  readonly text: string | null;
  readonly json: string | null;
  readonly finish_reason: string | null;
  readonly input_tokens: number | null;
  readonly cached_tokens: number | null;
  readonly output_tokens: number | null;
  readonly reasoning_tokens: number | null;
  readonly total_tokens: number | null;
  readonly error_code: string | null;
  readonly error_message: string | null;
}

/** A line of a result file is not JSON. */
export class NotAResultRow extends Error {
  override readonly name = "NotAResultRow";
}

const ROW = new MemberFinder(["custom_id", "response", "error"]);
const RESPONSE = new MemberFinder(["status_code", "body"]);
const BODY_KEYS = ["model", "usage", "error", "choices", "output", "data", "results"] as const;
const BODY = new MemberFinder(BODY_KEYS);
const CHOICE = new MemberFinder(["message", "text", "finish_reason"]);
const MESSAGE = new MemberFinder(["content", "refusal", "tool_calls"]);
const OUTPUT = new MemberFinder(["type", "content"]);
const PART = new MemberFinder(["text"]);
const ERROR = new MemberFinder(["code", "message"]);

type Body = Partial<Record<(typeof BODY_KEYS)[number], Buffer>>;

/** Throws {@link NotAResultRow} for bytes that are not JSON. */
export function readResultRow(bytes: Buffer): ResultRow {
  const row = ROW.in(bytes);
  if (row === null) throw new NotAResultRow();
  const response = isPresent(row.response) ? (RESPONSE.in(row.response) ?? {}) : {};
  const body = isPresent(response.body) ? (BODY.in(response.body) ?? {}) : {};
  const error = isPresent(row.error) ? row.error : body.error;
  const isFailed = isPresent(error);
  return {
    custom_id: stringIn(row.custom_id),
    line: lineNumberOf(bytes),
    status: integerIn(response.status_code),
    model: stringIn(body.model),
    ...(isFailed ? NO_ANSWER : answerIn(body, response.body)),
    ...tokensIn(body),
    ...(isFailed ? errorIn(error) : NO_ERROR),
  };
}

type Answer = Pick<ResultRow, "text" | "json" | "finish_reason">;
const NO_ANSWER: Answer = { text: null, json: null, finish_reason: null };

function answerIn(body: Body, whole: Buffer | undefined): Answer {
  const choice = firstChoice(body.choices);
  const message = choice.message === undefined ? {} : (MESSAGE.in(choice.message) ?? {});
  const text =
    messageText(message.content) ??
    stringIn(choice.text) ??
    stringIn(message.refusal) ??
    outputText(body.output);
  const finish_reason = stringIn(choice.finish_reason);
  if (text !== null && text !== "" && !isPresent(message.tool_calls)) {
    return { text, json: null, finish_reason };
  }
  const other = message.tool_calls ?? body.data ?? body.results ?? body.output;
  return { text, json: jsonIn(other) ?? (text === null ? jsonIn(whole) : null), finish_reason };
}

type Choice = Partial<Record<"message" | "text" | "finish_reason", Buffer>>;

function firstChoice(choices: Buffer | undefined): Choice {
  const found: Choice[] = [];
  if (choices !== undefined) {
    CHOICE.inEach(choices, (choice) => {
      if (found.length === 0) found.push(choice);
    });
  }
  return found[0] ?? {};
}

/** Returns the text of a message: a string, or a list of parts with texts. */
const messageText = (content: Buffer | undefined): string | null =>
  isPresent(content) ? (stringIn(content) ?? withTexts(null, content)) : null;

/** Returns the texts of all messages in the output of a response. There may be millions, so none of them is kept. */
function outputText(output: Buffer | undefined): string | null {
  let joined: string | null = null;
  if (output === undefined) return null;
  OUTPUT.inEach(output, ({ type, content }) => {
    const isShown = content !== undefined && stringIn(type) !== "reasoning";
    if (isShown) joined = withTexts(joined, content);
  });
  return joined;
}

/** Adds the texts of all parts to those before; null when there is none. */
function withTexts(before: string | null, parts: Buffer): string | null {
  let joined = before;
  PART.inEach(parts, (part) => {
    const text = stringIn(part.text);
    if (text !== null) joined = (joined ?? "") + text;
  });
  return joined;
}

/** A longer value is no usage of any server. */
const MAX_USAGE_BYTES = 64 * 1024;

type Tokens = Pick<
  ResultRow,
  "input_tokens" | "cached_tokens" | "output_tokens" | "reasoning_tokens" | "total_tokens"
>;
const NO_TOKENS: Tokens = {
  input_tokens: null,
  cached_tokens: null,
  output_tokens: null,
  reasoning_tokens: null,
  total_tokens: null,
};

function tokensIn({ usage }: Body): Tokens {
  if (!isPresent(usage) || usage.length > MAX_USAGE_BYTES) return NO_TOKENS;
  const found = readUsage(JSON.parse(usage.toString()));
  return {
    input_tokens: found.inputTokens,
    cached_tokens: found.cachedTokens,
    output_tokens: found.outputTokens,
    reasoning_tokens: found.reasoningTokens,
    total_tokens: found.totalTokens,
  };
}

type RowError = Pick<ResultRow, "error_code" | "error_message">;
const NO_ERROR: RowError = { error_code: null, error_message: null };

function errorIn(error: Buffer): RowError {
  const { code, message } = ERROR.in(error) ?? {};
  return {
    error_code: stringIn(code) ?? jsonIn(code),
    error_message: stringIn(message) ?? jsonIn(message) ?? stringIn(error),
  };
}
