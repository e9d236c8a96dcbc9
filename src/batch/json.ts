/**
 * JSON read where it lies: a strict validator over bytes that reports where values begin and end.
 *
 * batchd passes request and response bodies through exactly as they were written, so it never needs
 * the values, only their extents: which bytes are `body`, which are `model`. `JSON.parse` would build
 * every object, round integers above 2^53 and cost about three times as much. What is valid here is what RFC 8259 says
 * is valid, and a property test holds it to `JSON.parse`. Bytes outside ASCII are taken as they are:
 * callers check UTF-8 first (`buffer.isUtf8`). Nothing recurses, so nesting depth costs one byte a level.
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

const isSpace = (byte: number | undefined) =>
  byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
const isDigit = (byte: number | undefined) => byte !== undefined && byte >= 0x30 && byte <= 0x39;
const isHex = (byte: number | undefined) =>
  byte !== undefined &&
  (isDigit(byte) || (byte >= 0x41 && byte <= 0x46) || (byte >= 0x61 && byte <= 0x66));
/** What may follow a backslash, apart from `u`: `" \ / b f n r t`. */
const SIMPLE_ESCAPES = new Set([0x22, 0x5c, 0x2f, 0x62, 0x66, 0x6e, 0x72, 0x74]);

export function skipSpace(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  while (at < end && isSpace(bytes[at])) at++;
  return at;
}

/** The offset after the string whose opening quote is at `from`, or -1. */
function skipString(bytes: Uint8Array, from: number, end: number): number {
  let at = from + 1;
  while (at < end) {
    const byte = bytes[at] as number;
    if (byte === QUOTE) return at + 1;
    if (byte < 0x20) return INVALID;
    if (byte !== BACKSLASH) {
      at++;
      continue;
    }
    const escaped = bytes[at + 1] as number;
    if (SIMPLE_ESCAPES.has(escaped)) at += 2;
    else if (escaped === 0x75 && at + 6 <= end && hasFourHexDigits(bytes, at + 2)) at += 6;
    else return INVALID;
  }
  return INVALID;
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

/** The containers that are open at some point: one byte a level, so any depth is affordable. */
class OpenContainers {
  #levels = new Uint8Array(64);
  #depth = 0;

  get depth() {
    return this.#depth;
  }

  get isObject() {
    return this.#levels[this.#depth - 1] === OPEN_OBJECT;
  }

  open(kind: number) {
    if (this.#depth === this.#levels.length) {
      const grown = new Uint8Array(this.#levels.length * 2);
      grown.set(this.#levels);
      this.#levels = grown;
    }
    this.#levels[this.#depth++] = kind;
  }

  close() {
    this.#depth--;
  }

  reset() {
    this.#depth = 0;
  }
}

/** Shared by all calls: a scan never yields, so two never overlap. */
const containers = new OpenContainers();

/** Leaves every container that closes at `from`; the offset of the first byte that closes none. */
function skipClosers(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  while (containers.depth > 0) {
    at = skipSpace(bytes, at, end);
    if (at >= end || bytes[at] !== (containers.isObject ? CLOSE_OBJECT : CLOSE_ARRAY)) return at;
    containers.close();
    at++;
  }
  return at;
}

/** The offset after the value that starts at `from` (no spaces before it), or -1 if it is not valid JSON. */
export function skipValue(bytes: Uint8Array, from: number, end: number): number {
  containers.reset();
  let at = from;
  for (;;) {
    if (at >= end) return INVALID;
    const byte = bytes[at] as number;
    if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
      containers.open(byte);
      at = skipSpace(bytes, at + 1, end);
      const isEmpty = bytes[at] === (byte === OPEN_OBJECT ? CLOSE_OBJECT : CLOSE_ARRAY);
      if (!isEmpty || at >= end) {
        if (byte === OPEN_OBJECT) at = skipKey(bytes, at, end);
        if (at === INVALID) return INVALID;
        continue;
      }
    } else {
      at = skipScalar(bytes, at, end);
      if (at === INVALID) return INVALID;
    }
    at = skipClosers(bytes, at, end);
    if (containers.depth === 0) return at;
    if (at >= end || bytes[at] !== COMMA) return INVALID;
    at = skipSpace(bytes, at + 1, end);
    if (containers.isObject) at = skipKey(bytes, at, end);
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

/** Keys to look for, as they stand in the text: `quoted(["model"])` is `["\"model\""]` in bytes. */
export const quoted = (names: readonly string[]) => names.map((name) => Buffer.from(`"${name}"`));

/** Which of `keys` (from {@link quoted}) stands at the extent, or -1. Sees through escapes such as `"mod\u0065l"`. */
export function indexOfKey(
  bytes: Buffer,
  start: number,
  end: number,
  keys: readonly Buffer[],
): number {
  let hasEscape = false;
  for (let at = start; at < end; at++) if (bytes[at] === BACKSLASH) hasEscape = true;
  if (hasEscape) {
    const plain = Buffer.from(`"${decodeString(bytes, { start, end })}"`);
    return keys.findIndex((key) => key.equals(plain));
  }
  for (let i = 0; i < keys.length; i++) if (isSame(bytes, start, end, keys[i] as Buffer)) return i;
  return -1;
}

function isSame(bytes: Uint8Array, start: number, end: number, key: Buffer): boolean {
  if (end - start !== key.length) return false;
  for (let i = 0; i < key.length; i++) if (bytes[start + i] !== key[i]) return false;
  return true;
}

export const isObjectAt = (bytes: Uint8Array, at: number) => bytes[at] === OPEN_OBJECT;
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
