/**
 * The custom ids of one input file, to find an id that comes a second time.
 *
 * A `Set` of strings would take a third of the time of validating a file and about 100 bytes a line. Here an
 * id stays the bytes it is: they lie one after the other in one buffer, and a table with open
 * addressing leads from the hash of an id to its number. A long id is kept as its SHA-256, so that a file
 * of nothing but ids does not end up in memory.
 */
import { createHash, randomBytes } from "node:crypto";
import { decodeString, type Extent, hasEscape } from "./json.ts";

/** With its quotes. */
const LONG_ID_BYTES = 256;
/** In front of a digest: no JSON string begins like this. */
const DIGEST_MARK = Buffer.from([0]);

const FIRST_ROOM = 1024;
const FIRST_ROOM_BYTES = 16 * 1024;
/** Different in each process, so that nobody can prepare ids that all meet in one place of the table. */
const HASH_SEED = randomBytes(4).readInt32LE();

/** FNV-1a. */
function hashOf(bytes: Uint8Array, start: number, end: number): number {
  let hash = HASH_SEED;
  for (let at = start; at < end; at++) {
    hash = Math.imul(hash ^ (bytes[at] as number), 0x01000193);
  }
  return hash ^ (hash >>> 15);
}

export class CustomIds {
  #count = 0;
  #text = Buffer.allocUnsafe(FIRST_ROOM_BYTES);
  /** Where each id ends in the text; it begins where the one before it ends. */
  #ends = new Float64Array(FIRST_ROOM);
  #hashes = new Int32Array(FIRST_ROOM);
  /** Numbers of ids, from 1, each at the place of its hash or in the next free one; 0 is free. Half of them stay free. */
  #places = new Int32Array(2 * FIRST_ROOM);

  /** Takes the id that is the JSON string at the extent; false when it is here already. */
  addIfNew(bytes: Buffer, id: Extent): boolean {
    if (!hasEscape(bytes, id.start, id.end)) return this.#addSpelled(bytes, id.start, id.end);
    // Two spellings of one id must meet, and JSON.stringify spells a text without need for escapes without them.
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
    const hash = hashOf(bytes, start, end);
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
