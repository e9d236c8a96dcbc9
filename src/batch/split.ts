/**
 * A stream of bytes as lines. Lines end at `\n`; a last line without one counts. Blank lines are
 * skipped but numbered, because people look for line 17 in an editor. A line longer than `maxLineBytes`
 * is reported without its bytes, so one line can never fill the memory.
 */

export interface SplitLine {
  /** From 1, blank lines counted. */
  readonly number: number;
  /** Offset of its first byte in the stream. */
  readonly start: number;
  /** Offset after its newline. */
  readonly end: number;
  /** Without the newline; null when the line is longer than allowed. */
  readonly bytes: Buffer | null;
}

const NEWLINE = 0x0a;

const isBlank = (bytes: Buffer): boolean => {
  for (const byte of bytes) if (byte !== 0x20 && byte !== 0x09 && byte !== 0x0d) return false;
  return true;
};

export class LineSplitter {
  readonly #maxLineBytes: number;
  #parts: Buffer[] = [];
  #partBytes = 0;
  #number: number;
  #start: number;

  /** `start` and `firstLine` say where in the file the stream begins. */
  constructor(maxLineBytes: number, { start, firstLine }: { start: number; firstLine: number }) {
    this.#maxLineBytes = maxLineBytes;
    this.#start = start;
    this.#number = firstLine;
  }

  *push(bytes: Buffer): Generator<SplitLine> {
    let from = 0;
    for (;;) {
      const newline = bytes.indexOf(NEWLINE, from);
      if (newline === -1) break;
      const line = this.#take(bytes.subarray(from, newline), 1);
      from = newline + 1;
      if (line !== null) yield line;
    }
    if (from < bytes.length) this.#keep(bytes.subarray(from));
  }

  /** The last line, when it has no newline. */
  *end(): Generator<SplitLine> {
    if (this.#partBytes === 0) return;
    const line = this.#take(Buffer.alloc(0), 0);
    if (line !== null) yield line;
  }

  #keep(part: Buffer) {
    this.#partBytes += part.length;
    if (this.#partBytes > this.#maxLineBytes) this.#parts = [];
    else this.#parts.push(part);
  }

  #take(lastPart: Buffer, newlineBytes: 0 | 1): SplitLine | null {
    const number = this.#number++;
    const start = this.#start;
    const lineBytes = this.#partBytes + lastPart.length;
    const parts = this.#parts;
    this.#start = start + lineBytes + newlineBytes;
    this.#partBytes = 0;
    this.#parts = [];
    if (lineBytes > this.#maxLineBytes) return { number, start, end: this.#start, bytes: null };
    const bytes = parts.length === 0 ? lastPart : Buffer.concat([...parts, lastPart]);
    return isBlank(bytes) ? null : { number, start, end: this.#start, bytes };
  }
}
