/** The lines of a batch that have ended, as readers see them. */

/** The file in which a line has its row. */
export type ResultKind = "output" | "error";

export interface FinishedLine {
  readonly number: number;
  /** The row as the result file has it, newline included. */
  readonly row: Buffer;
}

/** A line whose row is passed on. A long row comes in pieces, because a slow client would keep it in memory for minutes. */
export interface PassedLine {
  readonly number: number;
  /** The length of the row, newline included. */
  readonly bytes: number;
  /** The row, newline included; or the pieces of a long one, without its last brace and newline. */
  readonly row: Buffer | AsyncIterable<Buffer>;
}

export interface FinishedLinesQuery {
  readonly kind: ResultKind;
  /** The line after which the reader begins, from 0. */
  readonly afterLine: number;
  /** Whether to end before the first line that has not ended yet, so that a reader who goes on there misses none. */
  readonly endsAtGap?: boolean;
  /** The callback for the line at such an end. Every wanted line before it has been read. */
  readonly onGap?: (line: number) => void;
}

/** The batch has ended, and its result file was deleted since. */
export class ResultFileDeleted extends Error {
  override readonly name = "ResultFileDeleted";
}

/** The result file has a row of a version that did not write line numbers. */
export class NoLineNumbers extends Error {
  override readonly name = "NoLineNumbers";
}
