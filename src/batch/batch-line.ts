/** The lines of a batch as clients page through them: the question and its answer side by side. */
import type { LineStatus } from "../contract/lines.ts";

export interface BatchLine {
  readonly number: number;
  readonly status: LineStatus;
  /** The id, as the JSON string of the input. */
  readonly customId: Buffer | null;
  /** The line as it was written; null when the input was deleted, or cannot be read any more. */
  readonly request: Buffer | null;
  /** The `response` and the `error` of its row, as JSON. */
  readonly response: Buffer | null;
  readonly error: Buffer | null;
}

export interface LineQuery {
  readonly afterLine: number;
  readonly limit: number;
  readonly status: LineStatus | null;
  readonly customId: string | null;
}

export interface LinePage {
  readonly lines: readonly BatchLine[];
  /** Whether there may be lines that match behind `lastLine`. */
  readonly hasMore: boolean;
  /** The last line that was looked at. */
  readonly lastLine: number;
}

/** Some failed lines with the same status and code. */
export interface FailureExample {
  readonly line: number;
  readonly customId: string | null;
  readonly message: string | null;
}
