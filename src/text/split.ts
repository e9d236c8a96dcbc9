/**
 * Splits a stream of bytes into lines. A line ends at `\n`; the last line needs none. Blank lines are skipped but
 * numbered, because people search for line 17 in an editor. A line longer than `maxLineBytes` is reported without its
 * bytes, so that one line can never fill the memory.
 */
import { Gathered } from "./gathered.ts";

export interface SplitLine {
  /** The number of the line, from 1, with blank lines counted. */
  readonly number: number;
  /** The offset of the first byte in the stream. */
  readonly start: number;
  /** The offset after the newline. */
  readonly end: number;
  /** The bytes without the newline; null for a line that is longer than allowed. */
  readonly bytes: Buffer | null;
}

const NEWLINE = 0x0a;
const isBlank = (byte: number) => byte === 0x20 || byte === 0x09 || byte === 0x0d;

export class LineSplitter {
  readonly #maxLineBytes: number;
  readonly #gathered = new Gathered();
  /** The length of the unfinished line so far. */
  #lineBytes = 0;
  #isBlank = true;
  #number: number;
  #start: number;

  /** The stream begins at the offset `start` of the file, in its line `firstLine`. */
  constructor(maxLineBytes: number, { start, firstLine }: { start: number; firstLine: number }) {
    this.#maxLineBytes = maxLineBytes;
    this.#start = start;
    this.#number = firstLine;
  }

  /** The bytes of the unfinished line that are held in memory. */
  get heldBytes(): number {
    return this.#gathered.length;
  }

  *push(bytes: Buffer): Generator<SplitLine> {
    let from = 0;
    while (from < bytes.length) {
      if (this.#isBlank) from = this.#skipBlankLines(bytes, from);
      const newline = bytes.indexOf(NEWLINE, from);
      this.#keep(bytes.subarray(from, newline === -1 ? bytes.length : newline));
      if (newline === -1) return;
      from = newline + 1;
      yield this.#take(1);
    }
  }

  /** Yields the last line, if it has no newline. */
  *end(): Generator<SplitLine> {
    if (!this.#isBlank || this.#lineBytes > this.#maxLineBytes) yield this.#take(0);
  }

  /**
   * Returns the start of the first line that is not blank, or not complete. A file may have millions of blank lines, so
   * nothing is allocated for them.
   */
  #skipBlankLines(bytes: Buffer, from: number): number {
    let lineStart = from;
    for (let at = from; at < bytes.length; at++) {
      const byte = bytes[at] as number;
      if (byte === NEWLINE) {
        const lineBytes = this.#lineBytes + at - lineStart;
        if (lineBytes > this.#maxLineBytes) break;
        this.#number++;
        this.#start += lineBytes + 1;
        this.#discard();
        lineStart = at + 1;
      } else if (!isBlank(byte)) {
        this.#isBlank = false;
        break;
      }
    }
    return lineStart;
  }

  #keep(part: Buffer) {
    this.#lineBytes += part.length;
    if (this.#lineBytes > this.#maxLineBytes) this.#gathered.take();
    else this.#gathered.add(part);
  }

  #take(newlineBytes: 0 | 1): SplitLine {
    const number = this.#number++;
    const start = this.#start;
    const isTooLong = this.#lineBytes > this.#maxLineBytes;
    const bytes = isTooLong ? null : this.#gathered.take();
    this.#start = start + this.#lineBytes + newlineBytes;
    this.#discard();
    this.#isBlank = true;
    return { number, start, end: this.#start, bytes };
  }

  #discard() {
    this.#lineBytes = 0;
    if (this.#gathered.length > 0) this.#gathered.take();
  }
}
