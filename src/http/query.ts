/**
 * Reads the query parameters of lists. Unknown parameters are ignored, because clients repeat all of them with a
 * cursor.
 */
import { wrongType } from "./body.ts";
import type { AppContext } from "./context.ts";

/** Returns null for a parameter that is missing or empty. */
export const textParam = (c: AppContext, name: string): string | null => c.req.query(name) || null;

export function integerParam(c: AppContext, name: string): number | null {
  const text = textParam(c, name);
  if (text === null) return null;
  if (!/^[+-]?\d{1,15}$/.test(text)) throw wrongType(name, "an integer", "a string");
  return Number(text);
}
