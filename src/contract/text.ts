import { z } from "zod";

/** Of any id that a client writes, in characters. */
export const ID_MAX_LENGTH = 64;

/**
 * Characters, not UTF-16 units: an emoji is one. Counted in place: as an array of its characters, a text of a megabyte
 * takes ten times as long.
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

/** A text that is stored, and so has a bound. */
export const boundedText = (maxLength: number) =>
  z
    .string()
    .check(({ value, issues }) => {
      // No text has more characters than units, so most are not counted.
      if (value.length <= maxLength || characterCount(value) <= maxLength) return;
      issues.push({ code: "too_big", origin: "string", maximum: maxLength, input: value });
    })
    .meta({ maxLength });
