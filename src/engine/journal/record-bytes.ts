/**
 * Gathers the bytes of records in a few buffers. The records of a flush live long enough to become old in the eyes of the
 * garbage collector. Two buffers for each would be most of the memory of a busy server, and two pieces for each would
 * make the write and the checksum slow.
 */
const SMALLEST_BYTES = 4 * 1024;
const LARGEST_BYTES = 64 * 1024;
/** A larger piece of a row is not copied. */
const MAX_COPIED_BYTES = 4 * 1024;
/** A UTF-16 unit takes at most so many bytes in UTF-8. */
const BYTES_PER_UNIT = 3;

export class RecordBytes {
  readonly #parts: Buffer[] = [];
  #buffer: Buffer = NOTHING;
  /** The part of the buffer that is not among the parts yet. */
  #start = 0;
  #end = 0;
  length = 0;

  addText(text: string): void {
    this.#makeRoom(text.length * BYTES_PER_UNIT);
    const bytes = this.#buffer.write(text, this.#end);
    this.#end += bytes;
    this.length += bytes;
  }

  add(piece: Buffer): void {
    if (piece.length > MAX_COPIED_BYTES) {
      this.#endPart();
      this.#parts.push(piece);
    } else {
      this.#makeRoom(piece.length);
      this.#end += piece.copy(this.#buffer, this.#end);
    }
    this.length += piece.length;
  }

  /** Returns all bytes in order. Nothing may be added afterwards. */
  finish(): readonly Buffer[] {
    this.#endPart();
    return this.#parts;
  }

  #makeRoom(bytes: number): void {
    if (this.#end + bytes <= this.#buffer.length) return;
    this.#endPart();
    const next = Math.min(LARGEST_BYTES, Math.max(SMALLEST_BYTES, 2 * this.#buffer.length));
    this.#buffer = Buffer.allocUnsafeSlow(Math.max(next, bytes));
    this.#start = 0;
    this.#end = 0;
  }

  #endPart(): void {
    if (this.#end > this.#start) this.#parts.push(this.#buffer.subarray(this.#start, this.#end));
    this.#start = this.#end;
  }
}

const NOTHING = Buffer.alloc(0);
