/** Reads keys and strings of JSON text at known offsets, escapes resolved. `json-scan.ts` finds the offsets. */
import { BACKSLASH, OPEN_ARRAY, OPEN_OBJECT, QUOTE } from "./json-tokens.ts";

/** A half-open range of byte offsets. */
export interface Extent {
  readonly start: number;
  readonly end: number;
}

const NOT_FOUND = -1;
/** The length of an ASCII character in the spelling `\u0061`. */
const ESCAPE_BYTES = 6;
const UNICODE_ESCAPE = 0x75;
/** The bit by which a small ASCII letter differs from its capital. */
const CASE_BIT = 0x20;
const FIRST_NON_ASCII = 0x80;

/** Keys to search for, in ASCII, as they stand in the text: `quoted(["model"])` is `["\"model\""]` in bytes. */
export const quoted = (names: readonly string[]) => names.map((name) => Buffer.from(`"${name}"`));

/**
 * Returns the index of the key at the extent in `keys` (from {@link quoted}), or -1. Escapes such as `"mod\u0065l"` are
 * resolved.
 */
export function indexOfKey(
  bytes: Buffer,
  start: number,
  end: number,
  keys: readonly Buffer[],
): number {
  for (let i = 0; i < keys.length; i++) if (isSame(bytes, start, end, keys[i] as Buffer)) return i;
  for (let i = 0; i < keys.length; i++) {
    if (isSpelled(bytes, start, end, keys[i] as Buffer)) return i;
  }
  return NOT_FOUND;
}

/** Returns whether the extent holds exactly these bytes. */
export function isSame(bytes: Uint8Array, start: number, end: number, text: Buffer): boolean {
  if (end - start !== text.length) return false;
  for (let i = 0; i < text.length; i++) if (bytes[start + i] !== text[i]) return false;
  return true;
}

/** Whether the bytes at two extents differ; false without a first one. */
export const isOther = (bytes: Buffer, first: Extent | null, { start, end }: Extent): boolean =>
  first !== null && !isSame(bytes, start, end, bytes.subarray(first.start, first.end));

/**
 * Whether the string at the extent spells `text` with escapes. `text` is ASCII and has its quotes. The comparison
 * stops at the first difference and allocates nothing: a file may have millions of such keys.
 */
export function isSpelled(bytes: Buffer, start: number, end: number, text: Buffer): boolean {
  if (end - start <= text.length || bytes[start] !== QUOTE) return false;
  let at = start + 1;
  for (let i = 1; i < text.length - 1; i++) {
    if (at >= end - 1) return false;
    let unit = bytes[at] as number;
    if (unit !== BACKSLASH) at++;
    else {
      unit = escapedUnit(bytes, at);
      at += escapeBytes(bytes, at);
    }
    if (unit !== text[i]) return false;
  }
  return at === end - 1;
}

const SHORT_ESCAPES = new Map(
  Object.entries({ b: 8, f: 12, n: 10, r: 13, t: 9 }).map(([letter, unit]) => [
    letter.charCodeAt(0),
    unit,
  ]),
);

const escapeBytes = (bytes: Buffer, at: number) =>
  bytes[at + 1] === UNICODE_ESCAPE ? ESCAPE_BYTES : 2;

/** Returns the UTF-16 unit that the escape at `at` stands for. */
function escapedUnit(bytes: Buffer, at: number): number {
  const escaped = bytes[at + 1] as number;
  if (escaped !== UNICODE_ESCAPE) return SHORT_ESCAPES.get(escaped) ?? escaped;
  let unit = 0;
  for (let i = 2; i < ESCAPE_BYTES; i++) {
    const digit = bytes[at + i] as number;
    // The low four bits of a hexadecimal letter, in either case, are nine less than its value.
    unit = unit * 16 + (digit <= 0x39 ? digit - 0x30 : (digit & 0x0f) + 9);
  }
  return unit;
}

/**
 * Whether the string at the extent spells `text`, which is ASCII, in another case. Some servers take a key so spelled for
 * the key, among them those in Go. They also take a long s and the sign of Kelvin for letters.
 */
export function isInOtherCase(bytes: Buffer, { start, end }: Extent, text: string): boolean {
  const length = end - start - 2;
  if (length < text.length || length > text.length * ESCAPE_BYTES) return false;
  const first = bytes[start + 1] as number;
  const isPlain = first < FIRST_NON_ASCII && first !== BACKSLASH;
  if (isPlain && (first | CASE_BIT) !== (text.charCodeAt(0) | CASE_BIT)) return false;
  if (length !== text.length && isPlainAscii(bytes, start, end)) return false;
  const spelled = decodeString(bytes, { start, end });
  return spelled !== text && withoutCase(spelled) === withoutCase(text);
}

const withoutCase = (text: string) => text.toUpperCase().toLowerCase();

function isPlainAscii(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at++) {
    const byte = bytes[at] as number;
    if (byte === BACKSLASH || byte >= FIRST_NON_ASCII) return false;
  }
  return true;
}

export function hasEscape(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at++) if (bytes[at] === BACKSLASH) return true;
  return false;
}

export const isObjectAt = (bytes: Uint8Array, at: number) => bytes[at] === OPEN_OBJECT;
export const isArrayAt = (bytes: Uint8Array, at: number) => bytes[at] === OPEN_ARRAY;
export const isStringAt = (bytes: Uint8Array, at: number) => bytes[at] === QUOTE;

/** Returns the string at the extent, whose quotes belong to it, with escapes resolved. */
export function decodeString(bytes: Buffer, extent: Extent): string {
  const inner = bytes.toString("utf8", extent.start + 1, extent.end - 1);
  return inner.includes("\\") ? (JSON.parse(`"${inner}"`) as string) : inner;
}

/** Returns the string at the extent, or the beginning of one that is spelled in more than `maxBytes`. */
export function decodeStart(bytes: Buffer, { start, end }: Extent, maxBytes: number): string {
  let at = start + 1;
  const stop = Math.min(end - 1, at + maxBytes);
  while (at < stop) at += bytes[at] === BACKSLASH ? escapeBytes(bytes, at) : 1;
  return decodeString(bytes, { start, end: at + 1 });
}
