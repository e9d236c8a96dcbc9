/** Finds what a row of an error file says: the group of its line, as it was counted, and the message. */

import { truncate } from "../text/truncate.ts";
import { type LineFailure, OTHER } from "./failures.ts";
import { codeIn, errorIn, MAX_PARSED_BYTES } from "./line-failure.ts";
import { RESPONSE_END, rowParts } from "./outcome.ts";

export interface RowFailure {
  readonly failure: LineFailure;
  readonly customId: string | null;
  readonly message: string | null;
}

const NOTHING: RowFailure = { failure: OTHER, customId: null, message: null };
const RESPONSE_HEAD = /^\{"status_code":(\d+),"request_id":"(?:[^"\\]|\\.)*","body":/;
/** The head of a response with the longest id that an upstream may give it. */
const HEAD_BYTES = 16 * 1024;

/**
 * The beginning of a row that tells all that {@link failureIn} finds, when the row is longer: the custom id, the head of the
 * response, and more of the body than is ever parsed.
 */
export const ROW_HEAD_BYTES = 192 * 1024;

/** Finds the same in the beginning of a row that is longer than {@link ROW_HEAD_BYTES}. */
export const failureInHead = (head: Buffer): RowFailure =>
  failureIn(Buffer.concat([head, RESPONSE_END]));

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
