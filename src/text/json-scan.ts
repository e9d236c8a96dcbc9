/**
 * A strict validator of JSON over bytes. It reports where values begin and end, and it can pause at any byte.
 *
 * batchd passes bodies through exactly as they were written. So it needs the extents of values, such as `body` and
 * `model`, but never the values. `JSON.parse` would build every object, round integers above 2^53 and cost about three
 * times as much.
 *
 * RFC 8259 defines what is valid here, and a property test compares the scan with `JSON.parse`. The one exception is a
 * number of more than 64 KiB, which the scan refuses. The scan accepts all bytes outside ASCII; its callers check the
 * UTF-8 (`buffer.isUtf8`).
 *
 * A text of 32 MB takes more than a tenth of a second, which would block the event loop. So a scan reads as many bytes
 * as its caller allows, and pauses there, even inside a string. The scan must never recurse: a level of nesting costs
 * one byte. Validation spends most of its time here, so measure before you change it.
 */
import { isImage, MIN_IMAGE_BYTES } from "./image-url.ts";
import {
  COLON,
  COMMA,
  INVALID,
  OPEN_ARRAY,
  OPEN_OBJECT,
  QUOTE,
  skipNumberOrLiteral,
  skipSpace,
  skipString,
} from "./json-tokens.ts";

/** A member of an object, reported at the end of its value. */
export interface Member {
  /** The depth of the object; 1 for the outermost one. */
  readonly depth: number;
  /** The extent of the key, quotes included. */
  readonly keyStart: number;
  readonly keyEnd: number;
  readonly start: number;
  readonly end: number;
  /**
   * The number of commas between the elements of an array; 0 for other values. Only members at the deepest reported
   * level have it.
   */
  readonly commaCount: number;
}

type Report = (member: Member) => void;

/** The token that must come next, spaces aside. A string or a key may also be unfinished. */
const VALUE = 0;
const KEY = 1;
const FIRST_ELEMENT = 2;
const FIRST_KEY = 3;
const COLON_NEXT = 4;
const AFTER_VALUE = 5;
const NOTHING = 6;
const IN_STRING = 7;
const IN_KEY = 8;

const SPACE = 0x20;
const isKey = (next: number) => next === KEY || next === FIRST_KEY;
const isValue = (next: number) => next === VALUE || next === FIRST_ELEMENT;
const mayClose = (next: number) =>
  next === AFTER_VALUE || next === FIRST_KEY || next === FIRST_ELEMENT;
/** Returns the closing bracket, which follows its opening one in ASCII at a distance of two. */
const closing = (opened: number) => opened + 2;

/** A scan over one JSON value with nothing but spaces around it. `begin` starts it again for another text. */
export class JsonScan implements Member {
  readonly #report: Report | null;
  readonly #reportDepth: number;
  #bytes: Uint8Array = new Uint8Array(0);
  #at = 0;
  #next = NOTHING;
  /** The opening byte of each open container, by level from 1. */
  #opened = new Uint8Array(64);
  #level = 0;
  /** The extents of the unfinished members, by depth. */
  readonly #keyStarts = [0, 0, 0];
  readonly #keyEnds = [0, 0, 0];
  readonly #starts = [0, 0, 0];
  depth = 0;
  keyStart = 0;
  keyEnd = 0;
  start = 0;
  end = 0;
  commaCount = 0;
  /** The images in `data:` URLs so far, and the bytes of these strings. */
  imageCount = 0;
  imageBytes = 0;
  /** The start of an unfinished string. */
  #stringStart = 0;
  /** The verdict; null until the scan is over. */
  isValid: boolean | null = null;

  /** The scan reports each member of an object at a depth up to `reportDepth`. */
  constructor(reportDepth: 0 | 1 | 2 = 0, report: Report | null = null) {
    this.#reportDepth = reportDepth;
    this.#report = report;
  }

  begin(bytes: Uint8Array): void {
    this.#bytes = bytes;
    this.#at = 0;
    this.#next = VALUE;
    this.#level = 0;
    this.imageCount = 0;
    this.imageBytes = 0;
    this.isValid = null;
  }

  /**
   * Reads about `byteCount` bytes; true at the end of the scan. Local variables for the state make it twice as fast.
   */
  advance(byteCount: number): boolean {
    const bytes = this.#bytes;
    const end = bytes.length;
    const reportDepth = this.#reportDepth;
    let at = this.#at;
    let next = this.#next;
    let level = this.#level;
    let stringStart = this.#stringStart;
    const stop = Math.min(end, at + byteCount);
    for (;;) {
      if (at >= stop) break;
      let byte = bytes[at] as number;
      if (byte <= SPACE && next < IN_STRING) {
        at = skipSpace(bytes, at, stop);
        if (at >= stop) break;
        byte = bytes[at] as number;
      }
      if (next >= IN_STRING || (byte === QUOTE && next < COLON_NEXT)) {
        if (next < IN_STRING) {
          if (level <= reportDepth) this.#note(level, next, at);
          next = isKey(next) ? IN_KEY : IN_STRING;
          stringStart = at++;
        }
        at = skipString(bytes, at, stop);
        if (at < 0) break;
        if (next === IN_KEY) {
          if (level <= reportDepth) this.#keyEnds[level] = at;
          if (at < stop && bytes[at] === COLON) {
            at++;
            next = VALUE;
          } else next = COLON_NEXT;
          continue;
        }
        if (at - stringStart >= MIN_IMAGE_BYTES) this.#noteLong(stringStart, at);
      } else if (next === COLON_NEXT && byte === COLON) {
        at++;
        next = VALUE;
        continue;
      } else if (next === AFTER_VALUE && byte === COMMA) {
        if (level === reportDepth + 1) this.commaCount++;
        next = this.#opened[level] === OPEN_OBJECT ? KEY : VALUE;
        at++;
        continue;
      } else if (mayClose(next) && byte === closing(this.#opened[level] as number)) {
        at++;
        level--;
      } else if (isValue(next)) {
        if (level <= reportDepth) this.#note(level, next, at);
        if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
          this.#open(++level, byte);
          next = byte === OPEN_OBJECT ? FIRST_KEY : FIRST_ELEMENT;
          at++;
          continue;
        }
        at = skipNumberOrLiteral(bytes, at, end);
        if (at === INVALID) break;
      } else return this.#finish(false);
      if (level > 0 && level <= reportDepth) this.#reportEnd(level, at);
      next = level === 0 ? NOTHING : AFTER_VALUE;
    }
    if (at === INVALID) return this.#finish(false);
    this.#at = at < 0 ? ~at : at;
    this.#next = next;
    this.#level = level;
    this.#stringStart = stringStart;
    return stop < end ? false : this.#finish(next === NOTHING);
  }

  /** Notes the place where a key or a value begins. */
  #note(level: number, next: number, at: number): void {
    if (isKey(next)) this.#keyStarts[level] = at;
    else {
      this.#starts[level] = at;
      this.commaCount = 0;
    }
  }

  #noteLong(start: number, end: number): void {
    if (!isImage(this.#bytes, start, end)) return;
    this.imageCount++;
    this.imageBytes += end - start;
  }

  /** Reports a member whose value has ended. An element of an array is not reported. */
  #reportEnd(level: number, end: number): void {
    if (this.#opened[level] !== OPEN_OBJECT) return;
    this.depth = level;
    this.keyStart = this.#keyStarts[level] as number;
    this.keyEnd = this.#keyEnds[level] as number;
    this.start = this.#starts[level] as number;
    this.end = end;
    this.#report?.(this);
  }

  #finish(isValid: boolean): true {
    this.isValid = isValid;
    this.#bytes = NO_BYTES;
    return true;
  }

  #open(level: number, byte: number): void {
    if (level === this.#opened.length) {
      const grown = new Uint8Array(2 * level);
      grown.set(this.#opened);
      this.#opened = grown;
    }
    this.#opened[level] = byte;
  }
}

const NO_BYTES = new Uint8Array(0);
const jsonScan = new JsonScan();

/** Returns whether the bytes are one JSON value with nothing but spaces around it. The caller checks the UTF-8. */
export function isJson(bytes: Uint8Array): boolean {
  jsonScan.begin(bytes);
  jsonScan.advance(bytes.length);
  return jsonScan.isValid === true;
}
