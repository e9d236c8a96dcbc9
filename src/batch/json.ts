/**
 * JSON read where it lies: a strict validator over bytes that reports where values begin and end.
 *
 * batchd passes request and response bodies through exactly as they were written, so it never needs
 * the values, only their extents: which bytes are `body`, which are `model`. `JSON.parse` would build
 * every object, round integers above 2^53 and cost about three times as much. What is valid here is
 * what RFC 8259 says is valid, and a property test holds it to `JSON.parse`. Bytes outside ASCII are
 * taken as they are: UTF-8 is the callers' to check (`buffer.isUtf8`). Nothing recurses, so a level of
 * nesting costs one byte. This is the hottest code of validation: measure before making it prettier.
 */

/** Half-open range of byte offsets. */
export interface Extent {
  readonly start: number;
  readonly end: number;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;
const COLON = 0x3a;
const COMMA = 0x2c;
const INVALID = -1;

const isSpace = (byte: number) =>
  byte <= 0x20 && (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09);
const isDigit = (byte: number | undefined) => byte !== undefined && byte >= 0x30 && byte <= 0x39;
const isHex = (byte: number | undefined) =>
  byte !== undefined &&
  (isDigit(byte) || (byte >= 0x41 && byte <= 0x46) || (byte >= 0x61 && byte <= 0x66));
/** 1 for what may follow a backslash, apart from `u`. */
const IS_ESCAPE = new Uint8Array(256);
for (const byte of Buffer.from('"\\/bfnrt')) IS_ESCAPE[byte] = 1;
/** 1 for the bytes that a string does not take as they stand: the quote, the backslash and controls. */
const STOPS_STRING = Uint8Array.from({ length: 256 }, (_, byte) =>
  byte < 0x20 || byte === QUOTE || byte === BACKSLASH ? 1 : 0,
);

export function skipSpace(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  while (at < end && isSpace(bytes[at] as number)) at++;
  return at;
}

/** The offset after the string whose opening quote is at `from`, or -1. */
function skipString(bytes: Uint8Array, from: number, end: number): number {
  let at = from + 1;
  for (;;) {
    at = skipPlain(bytes, at, end);
    if (at >= end) return INVALID;
    const byte = bytes[at] as number;
    if (byte === QUOTE) return at + 1;
    if (byte !== BACKSLASH) return INVALID;
    at = skipEscape(bytes, at);
    if (at === INVALID) return INVALID;
  }
}

/** Most bytes of a batch pass through here: four at a time take half as long. */
function skipPlain(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  for (const lastFour = end - 4; at <= lastFour; at += 4) {
    const stops =
      (STOPS_STRING[bytes[at] as number] as number) |
      (STOPS_STRING[bytes[at + 1] as number] as number) |
      (STOPS_STRING[bytes[at + 2] as number] as number) |
      (STOPS_STRING[bytes[at + 3] as number] as number);
    if (stops !== 0) break;
  }
  while (at < end && STOPS_STRING[bytes[at] as number] === 0) at++;
  return at;
}

/** May end behind `end`, which {@link skipString} then notices. */
function skipEscape(bytes: Uint8Array, from: number): number {
  const escaped = bytes[from + 1] as number;
  if (escaped === 0x75) return hasFourHexDigits(bytes, from + 2) ? from + 6 : INVALID;
  return IS_ESCAPE[escaped] === 1 ? from + 2 : INVALID;
}

function hasFourHexDigits(bytes: Uint8Array, at: number): boolean {
  return isHex(bytes[at]) && isHex(bytes[at + 1]) && isHex(bytes[at + 2]) && isHex(bytes[at + 3]);
}

function skipDigits(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  while (at < end && isDigit(bytes[at])) at++;
  return at > from ? at : INVALID;
}

function skipNumber(bytes: Uint8Array, from: number, end: number): number {
  let at = bytes[from] === 0x2d ? from + 1 : from;
  if (at < end && bytes[at] === 0x30) at++;
  else at = skipDigits(bytes, at, end);
  if (at !== INVALID && at < end && bytes[at] === 0x2e) at = skipDigits(bytes, at + 1, end);
  if (at === INVALID || at >= end || (bytes[at] !== 0x65 && bytes[at] !== 0x45)) return at;
  const sign = bytes[at + 1];
  return skipDigits(bytes, sign === 0x2b || sign === 0x2d ? at + 2 : at + 1, end);
}

const LITERALS = new Map([
  [0x74, Buffer.from("true")],
  [0x66, Buffer.from("false")],
  [0x6e, Buffer.from("null")],
]);

function skipLiteral(bytes: Uint8Array, from: number, end: number): number {
  const literal = LITERALS.get(bytes[from] as number);
  if (literal === undefined || from + literal.length > end) return INVALID;
  for (let i = 1; i < literal.length; i++) if (bytes[from + i] !== literal[i]) return INVALID;
  return from + literal.length;
}

function skipScalar(bytes: Uint8Array, from: number, end: number): number {
  const byte = bytes[from] as number;
  if (byte === QUOTE) return skipString(bytes, from, end);
  if (byte === 0x2d || isDigit(byte)) return skipNumber(bytes, from, end);
  return skipLiteral(bytes, from, end);
}

/** The colon at or after `from` and the spaces around it; the offset of the value, or -1. */
function skipColon(bytes: Uint8Array, from: number, end: number): number {
  const colon = skipSpace(bytes, from, end);
  if (colon >= end || bytes[colon] !== COLON) return INVALID;
  return skipSpace(bytes, colon + 1, end);
}

/** A key and its colon; the offset of the value, or -1. */
function skipKey(bytes: Uint8Array, from: number, end: number): number {
  if (from >= end || bytes[from] !== QUOTE) return INVALID;
  const afterKey = skipString(bytes, from, end);
  return afterKey === INVALID ? INVALID : skipColon(bytes, afterKey, end);
}

/**
 * The containers that are open at some point of a scan, outermost first, as their opening bytes. Shared
 * by all scans: one never yields, so two never overlap.
 */
let levels = new Uint8Array(64);

function growLevels() {
  const grown = new Uint8Array(levels.length * 2);
  grown.set(levels);
  levels = grown;
}

/** The offset after the value that starts at `from` (no spaces before it), or -1 if it is not valid JSON. */
export function skipValue(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  let depth = 0;
  for (;;) {
    // Here a value starts.
    if (at >= end) return INVALID;
    const byte = bytes[at] as number;
    if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
      if (depth === levels.length) growLevels();
      levels[depth++] = byte;
      at = skipSpace(bytes, at + 1, end);
      if (at >= end) return INVALID;
      // In ASCII each closing bracket follows its opening one at a distance of two.
      if (bytes[at] !== byte + 2) {
        if (byte === OPEN_OBJECT) at = skipKey(bytes, at, end);
        if (at === INVALID) return INVALID;
        continue;
      }
    } else {
      at = skipScalar(bytes, at, end);
      if (at === INVALID || depth === 0) return at;
      at = skipSpace(bytes, at, end);
    }
    // Here a value has ended: leave every container that closes, then go on to the next value.
    while (at < end && bytes[at] === (levels[depth - 1] as number) + 2) {
      at++;
      if (--depth === 0) return at;
      at = skipSpace(bytes, at, end);
    }
    if (at >= end || bytes[at] !== COMMA) return INVALID;
    at = skipSpace(bytes, at + 1, end);
    if (levels[depth - 1] === OPEN_OBJECT) at = skipKey(bytes, at, end);
    if (at === INVALID) return INVALID;
  }
}

/**
 * Walks the members of the object that starts at `from`. `readValue` gets the extent of a key (with its
 * quotes) and the offset where its value starts, and returns the offset after that value (usually by
 * `skipValue` or a `skipObject` of its own), or -1 to say that it is invalid. Returns the offset after
 * the object, or -1.
 */
export function skipObject(
  bytes: Uint8Array,
  from: number,
  end: number,
  readValue: (keyStart: number, keyEnd: number, valueStart: number) => number,
): number {
  if (from >= end || bytes[from] !== OPEN_OBJECT) return INVALID;
  let at = skipSpace(bytes, from + 1, end);
  if (at < end && bytes[at] === CLOSE_OBJECT) return at + 1;
  for (;;) {
    if (at >= end || bytes[at] !== QUOTE) return INVALID;
    const keyEnd = skipString(bytes, at, end);
    const valueStart = keyEnd === INVALID ? INVALID : skipColon(bytes, keyEnd, end);
    if (valueStart === INVALID) return INVALID;
    at = readValue(at, keyEnd, valueStart);
    if (at === INVALID) return INVALID;
    at = skipSpace(bytes, at, end);
    if (at >= end) return INVALID;
    if (bytes[at] === CLOSE_OBJECT) return at + 1;
    if (bytes[at] !== COMMA) return INVALID;
    at = skipSpace(bytes, at + 1, end);
  }
}

/** How many elements the array at `from` has, which is known to be valid. */
export function countElements(bytes: Uint8Array, from: number, end: number): number {
  let at = skipSpace(bytes, from + 1, end);
  if (bytes[at] === CLOSE_ARRAY) return 0;
  for (let count = 1; ; count++) {
    at = skipSpace(bytes, skipValue(bytes, at, end), end);
    if (bytes[at] !== COMMA) return count;
    at = skipSpace(bytes, at + 1, end);
  }
}

/** Keys to look for, as they stand in the text: `quoted(["model"])` is `["\"model\""]` in bytes. */
export const quoted = (names: readonly string[]) => names.map((name) => Buffer.from(`"${name}"`));

/** Which of `keys` (from {@link quoted}) stands at the extent, or -1. Sees through escapes such as `"mod\u0065l"`. */
export function indexOfKey(
  bytes: Buffer,
  start: number,
  end: number,
  keys: readonly Buffer[],
): number {
  for (let i = 0; i < keys.length; i++) if (isSame(bytes, start, end, keys[i] as Buffer)) return i;
  if (!hasEscape(bytes, start, end)) return INVALID;
  const plain = Buffer.from(`"${decodeString(bytes, { start, end })}"`);
  return keys.findIndex((key) => key.equals(plain));
}

/** Whether the extent holds exactly these bytes. */
export function isSame(bytes: Uint8Array, start: number, end: number, text: Buffer): boolean {
  if (end - start !== text.length) return false;
  for (let i = 0; i < text.length; i++) if (bytes[start + i] !== text[i]) return false;
  return true;
}

export function hasEscape(bytes: Uint8Array, start: number, end: number): boolean {
  for (let at = start; at < end; at++) if (bytes[at] === BACKSLASH) return true;
  return false;
}

export const isObjectAt = (bytes: Uint8Array, at: number) => bytes[at] === OPEN_OBJECT;
export const isArrayAt = (bytes: Uint8Array, at: number) => bytes[at] === OPEN_ARRAY;
export const isStringAt = (bytes: Uint8Array, at: number) => bytes[at] === QUOTE;

/** Whether the bytes are one JSON value with nothing but spaces around it. UTF-8 is the caller's to check. */
export function isJson(bytes: Uint8Array): boolean {
  const after = skipValue(bytes, skipSpace(bytes, 0, bytes.length), bytes.length);
  return after !== INVALID && skipSpace(bytes, after, bytes.length) === bytes.length;
}

/** The string that the extent (with its quotes) spells, escapes resolved. */
export function decodeString(bytes: Buffer, extent: Extent): string {
  const inner = bytes.toString("utf8", extent.start + 1, extent.end - 1);
  return inner.includes("\\") ? (JSON.parse(`"${inner}"`) as string) : inner;
}
