/**
 * What an upload turns out to be, found while its bytes pass: how many, their SHA-256, whether they are
 * UTF-8 and whether they begin as JSONL does. Holds one first line of bounded length and at most three
 * bytes of a character that continues in the next chunk.
 */
import { createHash } from "node:crypto";
import { type FirstLine, hintFor, judgeFirstLine } from "./first-line.ts";
import { LineSplitter, type SplitLine } from "./split.ts";
import { Utf8Check } from "./utf8.ts";

/** A first line that is longer is left to the validation of a batch, which reads whole lines anyway. */
const FIRST_LINE_MAX_BYTES = 256 * 1024;

export class ContentCheck {
  readonly #hash = createHash("sha256");
  readonly #splitter = new LineSplitter(FIRST_LINE_MAX_BYTES, { start: 0, firstLine: 1 });
  #bytes = 0;
  readonly #utf8 = new Utf8Check();
  /** Null as long as all lines are blank. */
  #firstLine: FirstLine | null = null;
  #firstLineNumber = 1;

  add(chunk: Buffer): void {
    this.#bytes += chunk.length;
    this.#hash.update(chunk);
    this.#utf8.add(chunk);
    if (this.#firstLine === null) this.#judgeFirstOf(this.#splitter.push(chunk));
  }

  /** Of everything, so it ends the check. */
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

export interface ContentReport {
  /** In hexadecimal. */
  readonly sha256: string;
  readonly isUtf8: boolean;
  /** What is wrong with the first line that is not blank, for batch input; null when nothing is. */
  readonly formatHint: string | null;
}
