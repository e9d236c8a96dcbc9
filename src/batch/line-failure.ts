/** Finds the group of a line that failed: the status and the code that its row has. */

import { beginning } from "../text/truncate.ts";
import { type LineFailure, OTHER } from "./failures.ts";
import { type FinalOutcome, noAnswerOf } from "./outcome.ts";

const MAX_CODE_CHARACTERS = 64;
/** A longer answer is not parsed for its code, because parsing blocks the event loop. */
export const MAX_PARSED_BYTES = 64 * 1024;

/** Returns the status and the code that the row of the line has. */
export function failureOf(outcome: FinalOutcome): LineFailure {
  if ("body" in outcome && outcome.body !== null) {
    return { status: outcome.status, code: codeIn(outcome.body) };
  }
  if (outcome.kind === "answered" || outcome.kind === "overloaded") return OTHER;
  return { status: null, code: noAnswerOf(outcome).code };
}

/** Returns the code that a body names; null for a long body. */
export function codeIn(body: Buffer): string | null {
  const code = errorIn(body)?.["code"];
  const isText = typeof code === "string" || typeof code === "number";
  return isText ? beginning(String(code), MAX_CODE_CHARACTERS) : null;
}

/** Returns the error that a body describes; null for a body that is long, or none. */
export function errorIn(body: Buffer): Readonly<Record<string, unknown>> | null {
  if (body.length > MAX_PARSED_BYTES) return null;
  try {
    const { error, ...top } = JSON.parse(body.toString()) as Record<string, unknown>;
    return typeof error === "object" && error !== null ? (error as Record<string, unknown>) : top;
  } catch {
    return null;
  }
}
