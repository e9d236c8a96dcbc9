/**
 * Joins bytes that come in pieces. Each piece is copied to its place as it comes. A join of 64 MB at the end would
 * block the event loop for 50 ms. The buffer must never be larger than twice the bytes that have come, whatever length
 * was announced.
 */
export class Gathered {
  readonly #announcedBytes: number;
  #bytes: Buffer = NOTHING;
  #length = 0;

  /** A text of known length is copied once less when `announcedBytes` is given. */
  constructor(announcedBytes: number | null = null) {
    this.#announcedBytes = announcedBytes ?? 0;
  }

  get length(): number {
    return this.#length;
  }

  add(piece: Buffer): void {
    // A single piece is kept without a copy. Most texts come in one piece.
    if (this.#length === 0) this.#bytes = piece;
    else {
      this.#makeRoom(this.#length + piece.length);
      piece.copy(this.#bytes, this.#length);
    }
    this.#length += piece.length;
  }

  /** Returns all bytes as one buffer and empties this object. */
  take(): Buffer {
    const isWhole = this.#length === this.#bytes.length;
    const all = isWhole ? this.#bytes : this.#bytes.subarray(0, this.#length);
    this.#bytes = NOTHING;
    this.#length = 0;
    return all;
  }

  #makeRoom(neededBytes: number): void {
    if (neededBytes <= this.#bytes.length) return;
    const roomBytes = 2 * neededBytes;
    const isEnough = this.#announcedBytes >= neededBytes && this.#announcedBytes < roomBytes;
    const grown = Buffer.allocUnsafeSlow(isEnough ? this.#announcedBytes : roomBytes);
    this.#bytes.copy(grown, 0, 0, this.#length);
    this.#bytes = grown;
  }
}

const NOTHING = Buffer.alloc(0);
