/**
 * Finds the lines of a file whose bodies are equal, byte for byte, to the body of an earlier line.
 *
 * A body is remembered by its SHA-256, cut to 128 bits, and the number of its line: some 40 bytes, however long it is. The
 * table holds a bounded number of bodies, so that no file fills the memory. A body that comes after the table is full
 * counts as new each time. The validation and the finalizer must agree on each line, so both use this class, and the bound must
 * never change for a batch under way.
 *
 * The bodies are spread over many small tables, because a table that grows is copied at once. A single one of a million bodies took
 * more than 200 ms of processor time for it, in which the event loop stands still.
 *
 * They have a salt of their own. Without it a client could choose bodies whose digests fall into one place, and the
 * search for a place would take as long as the table.
 *
 * A digest is made in steps, because a body of 250 MB takes 130 ms.
 */
import { createHash, type Hash, randomBytes } from "node:crypto";
import type { Reading } from "../text/reading.ts";

/** So many bodies take 100 MB at most. */
const MAX_BODIES = 2_000_000;
/** A digest is kept in four words. */
const WORDS = 4;
const TABLES = 256;
const FIRST_PLACES = 16;
const SALT_BYTES = 16;

export class EqualBodies {
  readonly #maxBodies: number;
  /** Makes the digest of one body after the other. */
  readonly digesting: Reading<Buffer> = new Digesting(randomBytes(SALT_BYTES));
  readonly #tables = Array.from({ length: TABLES }, () => new Table());
  #count = 0;
  #lastLine = 0;

  constructor(maxBodies = MAX_BODIES) {
    this.#maxBodies = maxBodies;
  }

  /** Returns the number of the first line with this body; null when it is this one, which is remembered. */
  firstWith(digest: Buffer, lineNumber: number): number | null {
    const words = Array.from({ length: WORDS }, (_, i) => digest.readInt32LE(4 * i));
    const table = this.#tables[digest.readUInt8(4 * WORDS) % TABLES] as Table;
    const found = table.find(words);
    if (found !== null) return found;
    if (this.#count === this.#maxBodies) return null;
    table.add(words, lineNumber);
    this.#count++;
    this.#lastLine = lineNumber;
    return null;
  }

  /** Whether a later line may have the body of this one. The lines come in order. */
  mayRepeat(lineNumber: number): boolean {
    return this.#count < this.#maxBodies || lineNumber <= this.#lastLine;
  }
}

class Digesting implements Reading<Buffer> {
  readonly #salt: Buffer;
  #body: Buffer = Buffer.alloc(0);
  #hash: Hash | null = null;
  #at = 0;

  constructor(salt: Buffer) {
    this.#salt = salt;
  }

  begin(body: Buffer): void {
    this.#body = body;
    this.#hash = createHash("sha256").update(this.#salt);
    this.#at = 0;
  }

  advance(byteCount: number): boolean {
    this.#hash?.update(this.#body.subarray(this.#at, this.#at + byteCount));
    this.#at += byteCount;
    return this.#at >= this.#body.length;
  }

  result(): Buffer {
    const digest = this.#hash?.digest();
    if (digest === undefined) throw new Error("there is no body to compare");
    return digest;
  }
}

/** The numbers of lines by the digests of their bodies: an open table, of which a quarter stays free. */
class Table {
  #count = 0;
  #digests = new Int32Array(WORDS * FIRST_PLACES);
  /** The number of the line at each place; 0 is a free place. */
  #lines = new Uint32Array(FIRST_PLACES);

  find(words: readonly number[]): number | null {
    return this.#lines[this.#placeOf(words)] || null;
  }

  add(words: readonly number[], line: number): void {
    this.#put(words, line);
    if (4 * ++this.#count > 3 * this.#lines.length) this.#grow();
  }

  /** Returns the place of the digest, or the free one where it belongs. */
  #placeOf(words: readonly number[]): number {
    const mask = this.#lines.length - 1;
    let place = (words[0] as number) & mask;
    while (this.#lines[place] !== 0 && !this.#isAt(place, words)) place = (place + 1) & mask;
    return place;
  }

  #isAt(place: number, words: readonly number[]): boolean {
    return words.every((word, i) => this.#digests[WORDS * place + i] === word);
  }

  #put(words: readonly number[], line: number): void {
    const place = this.#placeOf(words);
    this.#digests.set(words, WORDS * place);
    this.#lines[place] = line;
  }

  #grow(): void {
    const [digests, lines] = [this.#digests, this.#lines];
    this.#digests = new Int32Array(2 * digests.length);
    this.#lines = new Uint32Array(2 * lines.length);
    lines.forEach((line, place) => {
      if (line !== 0) this.#put([...digests.subarray(WORDS * place, WORDS * (place + 1))], line);
    });
  }
}
