/**
 * What an upload turns out to be, found while its bytes pass: how many, their SHA-256, whether they are
 * UTF-8 and whether they begin as JSONL does. Holds one first line of bounded length and at most three
 * bytes of a character that continues in the next chunk.
 */
import { createHash } from "node:crypto";
import { isJson } from "./json-scan.ts";
import { LineSplitter } from "./split.ts";
import { Utf8Check } from "./utf8.ts";

/** A first line that is longer is left to the validation of a batch, which reads whole lines anyway. */
const FIRST_LINE_MAX_BYTES = 256 * 1024;

const BYTE_ORDER_MARK = Buffer.from([0xef, 0xbb, 0xbf]);

/** `unknown` is a line too long to be judged here. */
export type FirstLine = "none" | "json" | "broken" | "unknown";

export class ContentCheck {
  readonly #hash = createHash("sha256");
  readonly #splitter = new LineSplitter(FIRST_LINE_MAX_BYTES, { start: 0, firstLine: 1 });
  #bytes = 0;
  readonly #utf8 = new Utf8Check();
  #firstLine: FirstLine = "none";

  add(chunk: Buffer): void {
    this.#bytes += chunk.length;
    this.#hash.update(chunk);
    this.#utf8.add(chunk);
    if (this.#firstLine === "none") this.#judgeFirstOf(this.#splitter.push(chunk));
  }

  /** Of everything, so it ends the check. */
  report(): ContentReport {
    if (this.#firstLine === "none") this.#judgeFirstOf(this.#splitter.end());
    return {
      sha256: this.#hash.copy().digest("hex"),
      isUtf8: this.#utf8.isValid,
      firstLine: this.#firstLine,
    };
  }

  get bytes(): number {
    return this.#bytes;
  }

  #judgeFirstOf(lines: Iterable<{ readonly bytes: Buffer | null }>): void {
    for (const { bytes } of lines) {
      if (bytes === null) this.#firstLine = "unknown";
      else this.#firstLine = isJson(withoutMark(bytes)) ? "json" : "broken";
      return;
    }
  }
}

export interface ContentReport {
  /** In hexadecimal. */
  readonly sha256: string;
  readonly isUtf8: boolean;
  /** Of the lines that are not blank. */
  readonly firstLine: FirstLine;
}

const withoutMark = (line: Buffer) =>
  line.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK)
    ? line.subarray(BYTE_ORDER_MARK.length)
    : line;
