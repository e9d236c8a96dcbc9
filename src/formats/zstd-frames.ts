/**
 * Cuts a stream of zstd at the ends of its frames (RFC 8878), and leaves out skippable frames. `createZstdDecompress` of Node
 * 24 drops what follows a frame within the same chunk, without an error, so it must never get the end of one frame and the
 * beginning of the next together. Files of `pzstd`, and files that were put together, have several frames.
 */
const MAGIC = 0xfd2fb528;
const SKIPPABLE = 0x184d2a50;
const DICTIONARY_BYTES = [0, 1, 2, 4];
const SIZE_BYTES = [0, 2, 4, 8];
const CHECKSUM_BYTES = 4;
const RLE = 1;

/** The stream is not zstd, or ends within a frame. */
export class NotZstd extends Error {
  override readonly name = "NotZstd";
}

type State = "magic" | "skippable" | "descriptor" | "block";

export class ZstdFrames {
  /** The frames so far, with those that can be skipped. */
  count = 0;
  /** The bytes of the header that is being read. */
  readonly #head = Buffer.alloc(4);
  #headBytes = 0;
  /** The bytes to pass before the next header, and whether they are part of the output. */
  #passBytes = 0;
  #isSkipping = false;
  #hasChecksum = false;
  /** The header after the bytes to pass. */
  #next: State = "magic";

  /**
   * Yields the bytes of frames, no piece across the end of a frame. A chunk may have 20,000 blocks of nothing, so a block
   * costs no piece of its own.
   */
  *push(chunk: Buffer): Generator<Buffer> {
    let from = 0;
    let at = 0;
    while (at < chunk.length) {
      if (this.#passBytes > 0) {
        const end = Math.min(chunk.length, at + this.#passBytes);
        this.#passBytes -= end - at;
        at = end;
      } else {
        const state = this.#next;
        const wanted = WANTED[state];
        while (this.#headBytes < wanted && at < chunk.length) {
          this.#head[this.#headBytes++] = chunk[at++] as number;
        }
        if (this.#headBytes < wanted) break;
        this.#headBytes = 0;
        this.#read(state);
        if (state === "magic") {
          // Only now it is known whether its bytes are part of the output.
          if (!this.#isSkipping) yield Buffer.from(this.#head);
          from = at;
        }
      }
      if (!this.#isBetweenFrames) continue;
      if (!this.#isSkipping) yield chunk.subarray(from, at);
      from = at;
    }
    const isInFrame = this.#next !== "magic" || this.#passBytes > 0;
    if (isInFrame && !this.#isSkipping && from < at) yield chunk.subarray(from, at);
  }

  get #isBetweenFrames(): boolean {
    return this.#next === "magic" && this.#passBytes === 0 && this.#headBytes === 0;
  }

  end(): void {
    if (!this.#isBetweenFrames) throw new NotZstd("unexpected end of file");
  }

  #read(state: State): void {
    const head = this.#head;
    switch (state) {
      case "magic": {
        const magic = head.readUInt32LE();
        this.#isSkipping = (magic & 0xfffffff0) === SKIPPABLE;
        if (magic !== MAGIC && !this.#isSkipping) throw new NotZstd("unknown frame descriptor");
        this.count++;
        this.#next = this.#isSkipping ? "skippable" : "descriptor";
        return;
      }
      case "skippable":
        this.#pass(head.readUInt32LE(), "magic");
        return;
      case "descriptor":
        this.#readDescriptor(head[0] as number);
        return;
      case "block": {
        const block = head.readUIntLE(0, 3);
        const isLast = (block & 1) === 1;
        const bytes = ((block >> 1) & 3) === RLE ? 1 : block >> 3;
        const checksumBytes = isLast && this.#hasChecksum ? CHECKSUM_BYTES : 0;
        this.#pass(bytes + checksumBytes, isLast ? "magic" : "block");
      }
    }
  }

  #readDescriptor(descriptor: number): void {
    const isSingle = (descriptor & 0x20) !== 0;
    const sizeFlag = descriptor >> 6;
    this.#hasChecksum = (descriptor & 0x04) !== 0;
    const sizeBytes = sizeFlag === 0 && isSingle ? 1 : (SIZE_BYTES[sizeFlag] ?? 0);
    const dictionaryBytes = DICTIONARY_BYTES[descriptor & 3] ?? 0;
    this.#pass((isSingle ? 0 : 1) + dictionaryBytes + sizeBytes, "block");
  }

  #pass(bytes: number, next: State): void {
    this.#passBytes = bytes;
    this.#next = next;
  }
}

/** The bytes of each header. */
const WANTED: Readonly<Record<State, number>> = { magic: 4, skippable: 4, descriptor: 1, block: 3 };
