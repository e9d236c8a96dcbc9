/** Finds text that would be JSON but for NaN and Infinity. Python writes and reads them as if they were JSON. */
import { isSame } from "./json.ts";
import { isJson } from "./json-scan.ts";
import { QUOTE, skipString } from "./json-tokens.ts";

/** What such a text is, for a hint. */
export const NO_NUMBERS =
  "JSON but for NaN or Infinity, which JSON does not have. Leave such a value out, or write null. In Python, json.dumps with allow_nan=False finds it.";

/** The names by their first byte, each with a number of the same length. */
const NAMES = new Map([
  [0x4e, { name: Buffer.from("NaN"), number: "0.0" }],
  [0x49, { name: Buffer.from("Infinity"), number: "0.000000" }],
]);

/** Returns whether a text is no JSON only because of these names in place of numbers. */
export function holdsNoNumbers(text: Buffer): boolean {
  let copy: Buffer | null = null;
  for (let at = 0; at < text.length; at++) {
    const byte = text[at] as number;
    if (byte === QUOTE) {
      const end = skipString(text, at + 1, text.length);
      if (end < 0) return false;
      at = end - 1;
      continue;
    }
    const named = NAMES.get(byte);
    if (named === undefined || !isSame(text, at, at + named.name.length, named.name)) continue;
    copy ??= Buffer.from(text);
    at += copy.write(named.number, at, "latin1") - 1;
  }
  return copy !== null && isJson(copy);
}
