/** Finds what a row of an error file says: the group of its line, as it was counted, and the message. */
import type { LineFailure } from "./failures.ts";
import { codeIn, errorIn, MAX_PARSED_BYTES } from "./line-failure.ts";
import { rowParts } from "./outcome.ts";
import { truncate } from "./truncate.ts";

interface RowFailure {
  readonly failure: LineFailure;
  readonly customId: string | null;
  readonly message: string | null;
}

const NOTHING: RowFailure = {
  failure: { status: null, code: null },
  customId: null,
  message: null,
};
const RESPONSE_HEAD = /^\{"status_code":(\d+),"request_id":"(?:[^"\\]|\\.)*","body":/;
/** The head of a response with the longest id that an upstream may give it. */
const HEAD_BYTES = 16 * 1024;

export function failureIn(row: Buffer): RowFailure {
  const parts = rowParts(row);
  if (parts === null) return NOTHING;
  const customId = JSON.parse(parts.customId.toString()) as string | null;
  if (parts.response === null) {
    const { code, message } = JSON.parse(parts.error?.toString() ?? "{}") as Record<string, string>;
    return { failure: { status: null, code: code ?? null }, customId, message: shortened(message) };
  }
  const head = RESPONSE_HEAD.exec(parts.response.toString("latin1", 0, HEAD_BYTES));
  if (head === null) return { ...NOTHING, customId };
  const body = parts.response.subarray(head[0].length, -1);
  const failure = { status: Number(head[1]), code: codeIn(body) };
  const message = body.length > MAX_PARSED_BYTES ? null : shortened(errorIn(body)?.["message"]);
  return { failure, customId, message };
}

const shortened = (message: unknown): string | null =>
  typeof message === "string" ? truncate(message, 200) : null;
