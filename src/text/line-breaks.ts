/**
 * Escapes the characters that are line breaks to Unicode, and that JSON takes as they are within its strings. Python's
 * `splitlines`, with it `iter_lines` of the official client, and `readline` of Node.js would cut a row of a result file
 * there. So no row may have one. The JSON means the same as before, and no other byte of it changes.
 */
import { isAscii } from "node:buffer";

const BREAK = /[\u0085\u2028\u2029]/g;
const BREAKS = ["\u0085", "\u2028", "\u2029"].map((character) => Buffer.from(character));

/** Returns a valid JSON text without such characters. */
export const withoutBreaksIn = (json: string): string =>
  json.replaceAll(
    BREAK,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** Does the same for bytes in UTF-8. A long text blocks the event loop, so pass it piece by piece. */
export function withoutBreaks(json: Buffer): Buffer {
  if (isAscii(json) || !BREAKS.some((character) => json.includes(character))) return json;
  return Buffer.from(withoutBreaksIn(json.toString()));
}

const CONTINUATION_MASK = 0xc0;
const CONTINUATION = 0x80;

/** Returns the end of the last whole character of UTF-8 before `end`. */
export function characterEnd(text: Buffer, end: number): number {
  let at = Math.min(end, text.length);
  while (at < text.length && ((text[at] ?? 0) & CONTINUATION_MASK) === CONTINUATION) at--;
  return at;
}
