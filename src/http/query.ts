/** Query parameters of lists. Those that are not known are ignored, as a cursor is followed with all of them. */
import { wrongType } from "./body.ts";
import type { AppContext } from "./context.ts";

/** Null when it is not given, or given empty. */
export const textParam = (c: AppContext, name: string): string | null => c.req.query(name) || null;

export function integerParam(c: AppContext, name: string): number | null {
  const text = textParam(c, name);
  if (text === null) return null;
  if (!/^[+-]?\d{1,15}$/.test(text)) throw wrongType(name, "an integer", "a string");
  return Number(text);
}
