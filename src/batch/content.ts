/**
 * Checks an upload while its bytes pass: their count, their SHA-256, whether they are UTF-8, and whether they begin
 * like JSONL. An early answer spares the client a failed batch. The check must never hold more than one first line of
 * bounded length and three bytes of a character that continues in the next chunk.
 */
import { createHash } from "node:crypto";
import { LineSplitter, type SplitLine } from "../text/split.ts";
import { Utf8Check } from "../text/utf8.ts";
import { type FirstLine, hintFor, judgeFirstLine } from "./first-line.ts";

/** The check ignores a longer first line. The validation of a batch reads whole lines anyway. */
const FIRST_LINE_MAX_BYTES = 256 * 1024;

export class ContentCheck {
  readonly #hash = createHash("sha256");
  readonly #splitter = new LineSplitter(FIRST_LINE_MAX_BYTES, { start: 0, firstLine: 1 });
  #bytes = 0;
  readonly #utf8 = new Utf8Check();
  /** The kind of the first line; null while all lines are blank. */
  #firstLine: FirstLine | null = null;
  #firstLineNumber = 1;

  add(chunk: Buffer): void {
    this.#bytes += chunk.length;
    this.#hash.update(chunk);
    this.#utf8.add(chunk);
    if (this.#firstLine === null) this.#judgeFirstOf(this.#splitter.push(chunk));
  }

  /** Reports on all bytes so far. The check ends here, because the first line is taken as complete. */
  report(): ContentReport {
    if (this.#firstLine === null) this.#judgeFirstOf(this.#splitter.end());
    const firstLine = this.#firstLine ?? (this.#bytes === 0 ? "empty" : "blank");
    return {
      sha256: this.#hash.copy().digest("hex"),
      isUtf8: this.#utf8.isValid,
      formatHint: hintFor(firstLine, this.#firstLineNumber),
    };
  }

  get bytes(): number {
    return this.#bytes;
  }

  #judgeFirstOf(lines: Iterable<SplitLine>): void {
    for (const { bytes, number } of lines) {
      this.#firstLine = bytes === null ? "unknown" : judgeFirstLine(bytes);
      this.#firstLineNumber = number;
      return;
    }
  }
}

export const NOT_UTF8 = "Invalid file for Batch API. Must be utf-8 encoded";

export const noJsonl = (hint: string): string =>
  `Invalid file format for Batch API. Must be .jsonl (HINT: ${hint})`;

export interface ContentReport {
  /** The digest, in hexadecimal. */
  readonly sha256: string;
  readonly isUtf8: boolean;
  /** The fault of the first line that is not blank, in words for the input of a batch; null when the line is good. */
  readonly formatHint: string | null;
}
