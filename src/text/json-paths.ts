/**
 * Finds the values at some paths of a JSON text, in one pass over its bytes, however many paths there are.
 *
 * A template of a derived input names such paths. The values are copied as bytes, so that numbers and strings stay as they
 * were written. The text must be valid JSON: batchd has checked it before. The pass must never recurse, and it pauses at any
 * byte, because a text may have 32 MB. The last of several equal keys counts, as with `JSON.parse`.
 */
import { decodeString, type Extent } from "./json.ts";
import {
  CLOSE_OBJECT,
  COLON,
  COMMA,
  OPEN_ARRAY,
  OPEN_OBJECT,
  QUOTE,
  skipNumberOrLiteral,
  skipSpace,
  skipString,
} from "./json-tokens.ts";
import type { Reading } from "./reading.ts";

/** The keys and indexes that lead to a value, from the outermost one. */
export type JsonPath = readonly string[];

const CLOSE_ARRAY = 0x5d;
/** Each byte of a key may be spelled with six. */
const MAX_SPELLED = 6;
const INDEX = /^(?:0|[1-9][0-9]{0,14})$/;

/** A place in the text that a path leads to or passes. */
class Place {
  readonly keys = new Map<string, Place>();
  readonly indexes = new Map<number, Place>();
  /** No key that is spelled with more bytes leads on. */
  maxKeyBytes = 0;
  /** The pass in which the extent was noted. */
  pass = 0;
  start = 0;
  end = 0;

  childAt(key: string): Place {
    const known = this.keys.get(key);
    if (known !== undefined) return known;
    const child = new Place();
    this.keys.set(key, child);
    if (INDEX.test(key)) this.indexes.set(Number(key), child);
    this.maxKeyBytes = Math.max(this.maxKeyBytes, MAX_SPELLED * Buffer.byteLength(key) + 2);
    return child;
  }
}

/** A container that is open, and that a path passes. */
interface Level {
  readonly place: Place;
  readonly isObject: boolean;
  index: number;
}

export class JsonPaths implements Reading<readonly (Extent | null)[]> {
  readonly #root = new Place();
  readonly #chains: readonly (readonly Place[])[];
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;
  #pass = 0;
  readonly #levels: Level[] = [];
  /** The number of open containers below the last level, which no path passes. */
  #skippedDepth = 0;
  /** The place of the value that comes next; null when no path leads there. */
  #next: Place | null = null;
  #isKeyNext = false;
  /** The start of an unfinished string; -1 outside of one. */
  #stringStart = -1;

  constructor(paths: readonly JsonPath[]) {
    this.#chains = paths.map((path) => {
      let place = this.#root;
      return [place, ...path.map((key) => (place = place.childAt(key)))];
    });
  }

  begin(bytes: Buffer): void {
    this.#bytes = bytes;
    this.#at = 0;
    this.#pass++;
    this.#levels.length = 0;
    this.#skippedDepth = 0;
    this.#next = this.#root;
    this.#isKeyNext = false;
    this.#stringStart = -1;
  }

  advance(byteCount: number): boolean {
    const bytes = this.#bytes;
    const stop = Math.min(bytes.length, this.#at + byteCount);
    let at = this.#at;
    while (at < stop) {
      if (this.#stringStart === -1) {
        at = skipSpace(bytes, at, stop);
        if (at >= stop) break;
      }
      const next = this.#token(at, stop);
      // The text is no JSON: what was found so far counts.
      if (next === -1) at = bytes.length;
      else if (next < 0) at = ~next;
      else at = next;
    }
    this.#at = at;
    return at >= bytes.length;
  }

  /** Returns the extent of the value at each path; null where there is none. */
  result(): readonly (Extent | null)[] {
    return this.#chains.map((chain) => {
      let from = -1;
      for (const { pass, start } of chain) {
        // An extent before its parent belongs to an earlier value of a key that came again.
        if (pass !== this.#pass || start <= from) return null;
        from = start;
      }
      const { start, end } = chain.at(-1) as Place;
      return { start, end };
    });
  }

  /** Reads one token. Returns the offset after it, as {@link skipString} does. */
  #token(at: number, stop: number): number {
    const bytes = this.#bytes;
    const byte = bytes[at] as number;
    if (this.#stringStart !== -1 || byte === QUOTE) return this.#string(at, stop);
    switch (byte) {
      case OPEN_OBJECT:
      case OPEN_ARRAY:
        this.#open(at, byte === OPEN_OBJECT);
        return at + 1;
      case CLOSE_OBJECT:
      case CLOSE_ARRAY:
        this.#close(at + 1);
        return at + 1;
      case COMMA:
        if (this.#skippedDepth === 0) this.#goOn();
        return at + 1;
      case COLON:
        return at + 1;
      default: {
        const end = skipNumberOrLiteral(bytes, at, bytes.length);
        if (end > at && this.#skippedDepth === 0) this.#note(at, end);
        return end;
      }
    }
  }

  #string(at: number, stop: number): number {
    const start = this.#stringStart === -1 ? at : this.#stringStart;
    const end = skipString(this.#bytes, this.#stringStart === -1 ? at + 1 : at, stop);
    this.#stringStart = end < -1 ? start : -1;
    if (end < 0 || this.#skippedDepth > 0) return end;
    if (this.#isKeyNext) this.#takeKey(start, end);
    else this.#note(start, end);
    return end;
  }

  #takeKey(start: number, end: number): void {
    this.#isKeyNext = false;
    const place = this.#levels.at(-1)?.place;
    const isPossible = place !== undefined && end - start <= place.maxKeyBytes;
    const key = isPossible ? decodeString(this.#bytes, { start, end }) : null;
    this.#next = key === null ? null : (place?.keys.get(key) ?? null);
  }

  #note(start: number, end: number): void {
    if (this.#next === null) return;
    this.#next.pass = this.#pass;
    this.#next.start = start;
    this.#next.end = end;
    this.#next = null;
  }

  #open(start: number, isObject: boolean): void {
    if (this.#skippedDepth > 0 || this.#next === null) {
      this.#skippedDepth++;
      return;
    }
    const place = this.#next;
    this.#note(start, start);
    this.#levels.push({ place, isObject, index: 0 });
    if (isObject) this.#isKeyNext = true;
    else this.#next = place.indexes.get(0) ?? null;
  }

  #close(end: number): void {
    if (this.#skippedDepth > 0) {
      this.#skippedDepth--;
      return;
    }
    const closed = this.#levels.pop();
    if (closed !== undefined) closed.place.end = end;
    this.#isKeyNext = false;
    this.#next = null;
  }

  /** Goes on to the next member or element of the last level. */
  #goOn(): void {
    const level = this.#levels.at(-1);
    if (level === undefined) return;
    if (level.isObject) this.#isKeyNext = true;
    else this.#next = level.place.indexes.get(++level.index) ?? null;
  }
}
