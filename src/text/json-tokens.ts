/**
 * Skips the tokens of JSON over bytes: spaces, strings, numbers and literals.
 *
 * Each function returns the offset after its token, or -1 for an invalid one, and must never read a token twice. Most
 * bytes of a batch pass here, so measure before you change it. `json-scan.ts` puts the tokens together.
 */

export const QUOTE = 0x22;
export const BACKSLASH = 0x5c;
export const OPEN_OBJECT = 0x7b;
export const CLOSE_OBJECT = 0x7d;
export const OPEN_ARRAY = 0x5b;
export const COLON = 0x3a;
export const COMMA = 0x2c;
export const INVALID = -1;
/** The longest number: digits, sign and exponent together. */
const MAX_NUMBER_BYTES = 64 * 1024;

const isSpace = (byte: number) =>
  byte <= 0x20 && (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09);
export const isDigit = (byte: number | undefined) =>
  byte !== undefined && byte >= 0x30 && byte <= 0x39;
const isHex = (byte: number | undefined) =>
  byte !== undefined &&
  (isDigit(byte) || (byte >= 0x41 && byte <= 0x46) || (byte >= 0x61 && byte <= 0x66));
/** The table has 1 for each byte that may follow a backslash, apart from `u`. */
const IS_ESCAPE = new Uint8Array(256);
for (const byte of Buffer.from('"\\/bfnrt')) IS_ESCAPE[byte] = 1;
/** The table has 1 for each byte that ends a plain stretch of a string: quote, backslash, control characters. */
const STOPS_STRING = Uint8Array.from({ length: 256 }, (_, byte) =>
  byte < 0x20 || byte === QUOTE || byte === BACKSLASH ? 1 : 0,
);

export function skipSpace(bytes: Uint8Array, from: number, end: number): number {
  let at = from;
  while (at < end && isSpace(bytes[at] as number)) at++;
  return at;
}

/**
 * Skips the rest of a string. Returns the offset after its closing quote, or -1 for an invalid string. A scan that
 * reaches `stop` first returns the bitwise complement of the offset to continue from, which is less than -1.
 */
export function skipString(bytes: Uint8Array, from: number, stop: number): number {
  let at = from;
  for (;;) {
    at = skipPlain(bytes, at, stop);
    if (at >= stop) return ~at;
    const byte = bytes[at] as number;
    if (byte === QUOTE) return at + 1;
    if (byte !== BACKSLASH) return INVALID;
    at = skipEscape(bytes, at);
    if (at === INVALID) return INVALID;
  }
}

/** Skips plain bytes, four at a time. Most bytes of a batch pass through here, and this way they take half the time. */
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

/** Returns an offset that may lie behind the text. {@link skipString} checks for that. */
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

export function skipNumberOrLiteral(bytes: Uint8Array, from: number, end: number): number {
  const byte = bytes[from] as number;
  if (byte !== 0x2d && !isDigit(byte)) return skipLiteral(bytes, from, end);
  const numberEnd = skipNumber(bytes, from, Math.min(end, from + MAX_NUMBER_BYTES));
  return numberEnd === from + MAX_NUMBER_BYTES ? INVALID : numberEnd;
}
