/**
 * Bytes that come in pieces and are wanted as one. They are put in their place as they come, so that at the end nothing
 * is left to do: to join 64 MB takes 50 ms. No more is taken than twice what has come, whatever was announced.
 */
export class Gathered {
  readonly #announcedBytes: number;
  #bytes: Buffer = NOTHING;
  #length = 0;

  /** `announcedBytes` keeps a text of known length from being moved once more than it needs. */
  constructor(announcedBytes: number | null = null) {
    this.#announcedBytes = announcedBytes ?? 0;
  }

  get length(): number {
    return this.#length;
  }

  add(piece: Buffer): void {
    // What comes in one piece, as most things do, is not copied.
    if (this.#length === 0) this.#bytes = piece;
    else {
      this.#makeRoom(this.#length + piece.length);
      piece.copy(this.#bytes, this.#length);
    }
    this.#length += piece.length;
  }

  /** Everything, in one piece; afterwards there is nothing here any more. */
  take(): Buffer {
    const all = this.#bytes.subarray(0, this.#length);
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
