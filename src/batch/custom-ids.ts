/**
 * Remembers the custom ids of one input file, to find an id that comes a second time.
 *
 * A `Set` of strings would take a third of the time that a file takes to validate, and about 100 bytes a line. Here the
 * ids of a table lie one after the other in one buffer, as bytes. Open addressing leads from the hash of an id to its
 * number. A long id is kept as its SHA-256, so that a file with long ids cannot fill the memory.
 *
 * The ids are spread over many small tables, because a table that grows is copied at once. A single one of a million ids took 85 ms
 * of processor time for it, in which the event loop stands still, and twice as much with each doubling.
 */
import { createHash, randomBytes } from "node:crypto";
import { decodeString, type Extent, hasEscape } from "../text/json.ts";

/** The longest id that is kept as it is, with its quotes. */
const LONG_ID_BYTES = 256;
/** The byte in front of a digest. No JSON string begins with it. */
const DIGEST_MARK = Buffer.from([0]);

/** The high bits of a hash say in which of 64 tables its id is, and the low ones where. */
const TABLE_SHIFT = 26;
const FIRST_ROOM = 16;
const FIRST_ROOM_BYTES = 256;
/** Each process draws its own seed, so that no client can prepare ids that all collide in the table. */
const HASH_SEED = randomBytes(4).readInt32LE();
/** An odd number with about as many ones as zeros: 2^32 divided by the golden ratio. */
const FACTOR = 0x9e3779b1;

/**
 * Hashes an id. Each byte is multiplied as in FNV-1a, and then the high bits go into the low ones. Without that second step
 * the low six bits of the seed would decide alone which ids collide: a client could prepare 64 files, and one of them would
 * hold up the event loop for seconds.
 */
export function hashOf(
  bytes: Uint8Array,
  { start, end }: Extent,
  seed: number = HASH_SEED,
): number {
  let hash = seed;
  for (let at = start; at < end; at++) {
    hash = Math.imul(hash ^ (bytes[at] as number), FACTOR);
    hash ^= hash >>> 15;
  }
  return hash;
}

export class CustomIds {
  readonly #tables = new Map<number, Table>();

  /** Adds the id whose JSON string lies at the extent. Returns false for an id that is here already. */
  addIfNew(bytes: Buffer, id: Extent): boolean {
    if (!hasEscape(bytes, id.start, id.end)) return this.#addSpelled(bytes, id.start, id.end);
    // Two spellings of one id must be found equal. JSON.stringify spells a text with the fewest escapes.
    const spelled = Buffer.from(JSON.stringify(decodeString(bytes, id)));
    return this.#addSpelled(spelled, 0, spelled.length);
  }

  #addSpelled(bytes: Buffer, start: number, end: number): boolean {
    if (end - start <= LONG_ID_BYTES) return this.#add(bytes, start, end);
    const digest = createHash("sha256").update(bytes.subarray(start, end)).digest();
    const marked = Buffer.concat([DIGEST_MARK, digest]);
    return this.#add(marked, 0, marked.length);
  }

  #add(bytes: Buffer, start: number, end: number): boolean {
    const hash = hashOf(bytes, { start, end });
    return this.#tableOf(hash >>> TABLE_SHIFT).addIfNew(hash, bytes, start, end);
  }

  #tableOf(number: number): Table {
    const known = this.#tables.get(number);
    if (known !== undefined) return known;
    const table = new Table();
    this.#tables.set(number, table);
    return table;
  }
}

class Table {
  #count = 0;
  #text = Buffer.allocUnsafe(FIRST_ROOM_BYTES);
  /** The end of each id in the text. An id begins at the end of the one before it. */
  #ends = new Float64Array(FIRST_ROOM);
  #hashes = new Int32Array(FIRST_ROOM);
  /**
   * The numbers of ids, from 1, at the place of their hash or the next free one. 0 is a free place, and half stay free.
   */
  #places = new Int32Array(2 * FIRST_ROOM);

  addIfNew(hash: number, bytes: Buffer, start: number, end: number): boolean {
    const mask = this.#places.length - 1;
    let place = hash & mask;
    for (;;) {
      const number = this.#places[place] as number;
      if (number === 0) break;
      if (this.#hashes[number - 1] === hash && this.#isId(number, bytes, start, end)) return false;
      place = (place + 1) & mask;
    }
    this.#append(bytes, start, end);
    this.#hashes[this.#count] = hash;
    this.#places[place] = ++this.#count;
    if (this.#count === this.#ends.length) this.#grow();
    return true;
  }

  #startOf(number: number): number {
    return number === 1 ? 0 : (this.#ends[number - 2] as number);
  }

  #isId(number: number, bytes: Buffer, start: number, end: number): boolean {
    const from = this.#startOf(number);
    if ((this.#ends[number - 1] as number) - from !== end - start) return false;
    for (let at = start; at < end; at++)
      if (bytes[at] !== this.#text[from + at - start]) return false;
    return true;
  }

  #append(bytes: Buffer, start: number, end: number) {
    const from = this.#startOf(this.#count + 1);
    const to = from + end - start;
    if (to > this.#text.length) {
      const longer = Buffer.allocUnsafe(Math.max(to, 2 * this.#text.length));
      this.#text.copy(longer, 0, 0, from);
      this.#text = longer;
    }
    for (let at = start; at < end; at++) this.#text[from + at - start] = bytes[at] as number;
    this.#ends[this.#count] = to;
  }

  #grow() {
    const room = 2 * this.#count;
    const ends = new Float64Array(room);
    ends.set(this.#ends);
    this.#ends = ends;
    const hashes = new Int32Array(room);
    hashes.set(this.#hashes);
    this.#hashes = hashes;
    this.#places = new Int32Array(2 * room);
    const mask = this.#places.length - 1;
    for (let number = 1; number <= this.#count; number++) {
      let place = (hashes[number - 1] as number) & mask;
      while (this.#places[place] !== 0) place = (place + 1) & mask;
      this.#places[place] = number;
    }
  }
}
