/**
 * What an upload turns out to be, found while its bytes pass: how many, their SHA-256, whether they are
 * UTF-8 and whether they begin as JSONL does. Holds one first line of bounded length and at most three
 * bytes of a character that continues in the next chunk.
 */
import { isUtf8 } from "node:buffer";
import { createHash } from "node:crypto";
import { isJson } from "./json.ts";
import { LineSplitter } from "./split.ts";

/** A first line that is longer is left to the validation of a batch, which reads whole lines anyway. */
const FIRST_LINE_MAX_BYTES = 1024 * 1024;

const BYTE_ORDER_MARK = Buffer.from([0xef, 0xbb, 0xbf]);

/** `unknown` is a line too long to be judged here. */
export type FirstLine = "none" | "json" | "broken" | "unknown";

export class ContentCheck {
  readonly #hash = createHash("sha256");
  readonly #splitter = new LineSplitter(FIRST_LINE_MAX_BYTES, { start: 0, firstLine: 1 });
  #bytes = 0;
  #isUtf8 = true;
  #firstLine: FirstLine = "none";
  /** The beginning of a character whose end is still to come. */
  #cut: Buffer = Buffer.alloc(0);

  add(chunk: Buffer): void {
    this.#bytes += chunk.length;
    this.#hash.update(chunk);
    this.#addText(chunk);
    if (this.#firstLine === "none") this.#judgeFirstOf(this.#splitter.push(chunk));
  }

  /** Of everything, so it ends the check. */
  report(): ContentReport {
    if (this.#firstLine === "none") this.#judgeFirstOf(this.#splitter.end());
    return {
      sha256: this.#hash.copy().digest("hex"),
      isUtf8: this.#isUtf8 && this.#cut.length === 0,
      firstLine: this.#firstLine,
    };
  }

  get bytes(): number {
    return this.#bytes;
  }

  #addText(chunk: Buffer): void {
    if (!this.#isUtf8) return;
    const text = this.#cut.length === 0 ? chunk : Buffer.concat([this.#cut, chunk]);
    const end = text.length - cutLength(text);
    this.#isUtf8 = isUtf8(text.subarray(0, end));
    this.#cut = Buffer.from(text.subarray(end));
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

/** How many bytes at the end begin a character of UTF-8 without ending it: 0 to 3. */
function cutLength(text: Buffer): number {
  for (let length = 1; length <= Math.min(3, text.length); length++) {
    const byte = text[text.length - length] as number;
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;
    const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return needed > length ? length : 0;
  }
  return 0;
}
