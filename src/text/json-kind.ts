/** Names the kind of a JSON value, in the words that OpenAI has for wrong types. */
import { type Extent, isArrayAt, isObjectAt, isStringAt } from "./json.ts";

export function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  switch (typeof value) {
    case "object":
      return "an object";
    case "number":
      return Number.isInteger(value) ? "an integer" : "a decimal";
    default:
      return `a ${typeof value}`;
  }
}

/** Names the kind of the value at the extent. Only short values are parsed: a number has at most 64 KiB. */
export function kindAt(bytes: Buffer, { start, end }: Extent): string {
  if (isObjectAt(bytes, start)) return "an object";
  if (isArrayAt(bytes, start)) return "an array";
  if (isStringAt(bytes, start)) return "a string";
  return kindOf(JSON.parse(bytes.toString("latin1", start, end)));
}
