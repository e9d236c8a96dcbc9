/**
 * Reads query parameters. The lists of OpenAI ignore unknown ones, because clients repeat all of them with a cursor.
 */
import { ADMIN_PAGE } from "../contract/key.ts";
import { integerTooLarge, unsupportedValue } from "../errors.ts";
import { integerTooSmall, repeatedParameter, unknownParameter, wrongType } from "./body.ts";
import type { AppContext } from "./context.ts";

/** Azure's clients send it with every request. */
const ALWAYS_KNOWN = ["api-version"];

/**
 * Refuses unknown parameters, and those that come twice. Routes that are not OpenAI's call it, because a misspelt option must
 * not go unnoticed.
 */
export function assertKnownParams(c: AppContext, names: readonly string[]): void {
  for (const [name, values] of Object.entries(c.req.queries())) {
    if (ALWAYS_KNOWN.includes(name)) continue;
    if (!names.includes(name)) throw unknownParameter(name);
    if (values.length > 1) throw repeatedParameter(name);
  }
}

/** Returns null for a parameter that is missing or empty. */
export const textParam = (c: AppContext, name: string): string | null => c.req.query(name) || null;

/** Returns null for a parameter that is missing or empty. */
export const choiceParam = <Value extends string>(
  c: AppContext,
  name: string,
  allowed: readonly Value[],
): Value | null => chosen(name, textParam(c, name), allowed);

export function chosen<Value extends string>(
  name: string,
  text: string | null,
  allowed: readonly Value[],
): Value | null {
  if (text === null) return null;
  const found = allowed.find((value) => value === text);
  if (found === undefined) throw unsupportedValue(name, text, allowed);
  return found;
}

/** Numbers of any length are compared with their bounds; 300 digits are still less than infinity. */
const INTEGER = /^[+-]?\d{1,300}$/;

export function integerParam(c: AppContext, name: string): number | null {
  const text = textParam(c, name);
  if (text === null) return null;
  if (!INTEGER.test(text)) throw wrongType(name, "an integer", "a string");
  return Number(text);
}

/** Returns null for a parameter that is missing or empty. */
export function boundedIntegerParam(
  c: AppContext,
  name: string,
  { min, max }: { readonly min: number; readonly max: number },
): number | null {
  const value = integerParam(c, name);
  if (value !== null && value > max) throw integerTooLarge(name, value, max);
  if (value !== null && value < min) throw integerTooSmall(name, value, min);
  return value;
}

/** Returns the page of a list for operators. */
export function adminPage<Id extends string = string>(c: AppContext) {
  assertKnownParams(c, ["limit", "after"]);
  return { limit: limitParam(c, ADMIN_PAGE), after: textParam(c, "after") as Id | null };
}

/** Returns the size of a page. */
export const limitParam = (
  c: AppContext,
  limits: { readonly min: number; readonly max: number; readonly default: number },
): number => boundedIntegerParam(c, "limit", limits) ?? limits.default;
