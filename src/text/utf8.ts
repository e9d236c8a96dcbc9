/** Checks UTF-8 piece by piece, so that an upload is checked while it streams. */
import { isUtf8 } from "node:buffer";

/**
 * Checks that bytes in pieces are UTF-8. It holds at most three bytes of a character that continues in the next piece.
 */
export class Utf8Check {
  #isValid = true;
  #cut: Buffer = Buffer.alloc(0);

  add(piece: Buffer): void {
    if (!this.#isValid) return;
    const text = this.#cut.length === 0 ? piece : Buffer.concat([this.#cut, piece]);
    const end = text.length - cutLength(text);
    this.#isValid = isUtf8(text.subarray(0, end));
    this.#cut = Buffer.from(text.subarray(end));
  }

  /** The verdict for all bytes so far, if none follow. */
  get isValid(): boolean {
    return this.#isValid && this.#cut.length === 0;
  }
}

/** Returns the number of bytes at the end that begin a character of UTF-8 without completing it: 0 to 3. */
function cutLength(text: Buffer): number {
  for (let length = 1; length <= Math.min(3, text.length); length++) {
    const byte = text[text.length - length] as number;
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;
    // The first byte of a character has as many leading ones as the character has bytes.
    const needed = Math.clz32(~byte << 24);
    return needed > length ? length : 0;
  }
  return 0;
}
