/** Bounds for texts of clients, counted in characters as OpenAI counts them. */
import { z } from "zod";

/** The longest id that a client may write, in characters. */
export const ID_MAX_LENGTH = 64;

/**
 * Counts characters instead of UTF-16 units: an emoji is one. The function counts in place, because an array of its
 * characters takes ten times as long for a text of a megabyte.
 */
export function characterCount(text: string): number {
  let count = text.length;
  for (let at = 1; at < text.length; at++) {
    const isPair = isHighSurrogate(text.charCodeAt(at - 1)) && isLowSurrogate(text.charCodeAt(at));
    if (isPair) count--;
  }
  return count;
}

const isHighSurrogate = (unit: number) => (unit & 0xfc00) === 0xd800;
const isLowSurrogate = (unit: number) => (unit & 0xfc00) === 0xdc00;

/** Puts the sign for an unreadable character in place of NUL, which PostgreSQL does not store, and of half a surrogate pair. */
export const readableText = (text: string): string =>
  text.toWellFormed().replaceAll("\0", "\ufffd");

/**
 * A readable text of at most `maxLength` characters. Every text that batchd stores needs such a bound. What is stored as it
 * came would look different in the answer to its request and in later ones.
 */
export const boundedText = (maxLength: number) =>
  z
    .string()
    .check(({ value, issues }) => {
      // A text never has more characters than units, so most texts need no count.
      if (value.length <= maxLength || characterCount(value) <= maxLength) return;
      issues.push({ code: "too_big", origin: "string", maximum: maxLength, input: value });
    })
    .overwrite(readableText)
    .meta({ maxLength });
