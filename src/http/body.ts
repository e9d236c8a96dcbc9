/** Parses a JSON body with its schema. The first fault is reported in OpenAI's words. */
import type { z } from "zod";
import { characterCount } from "../contract/text.ts";
import {
  integerTooLarge,
  PublicError,
  stringTooLong,
  tooManyProperties,
  unsupportedValue,
} from "../errors.ts";
import { kindOf } from "../text/json-kind.ts";
import { truncate } from "../text/truncate.ts";

export function parseBody<Shape extends z.ZodRawShape>(
  schema: z.ZodObject<Shape>,
  body: unknown,
): z.infer<z.ZodObject<Shape, z.core.$strict>> {
  assertFewMembers(body);
  const parsed = schema.strict().safeParse(body, { reportInput: true });
  if (parsed.success) return parsed.data;
  throw faultOf(firstOf(parsed.error.issues));
}

/**
 * Leaves out the fields of a body that are null. Clients in typed languages send null for a field that is left out, and
 * this suits a body in which null means nothing else.
 */
export function withoutNulls(body: unknown): unknown {
  if (typeof body !== "object" || body === null || Array.isArray(body)) return body;
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
}

/**
 * The most elements of an array. 8 GiB have about as many parts of 1 MB, and the schema checks them in some
 * milliseconds.
 */
const MAX_ELEMENTS = 10_000;
const MAX_PROPERTIES = 1_000;

/**
 * Limits the members of a body. A schema visits each one and allocates an object for a wrong one, and a megabyte has
 * room for 400,000.
 */
function assertFewMembers(body: unknown): void {
  // A body that is no object is refused without a look at its elements.
  if (typeof body !== "object" || body === null || Array.isArray(body)) return;
  assertFew("", body);
  for (const [name, value] of Object.entries(body)) {
    if (typeof value === "object" && value !== null) assertFew(name, value);
  }
}

function assertFew(path: string, value: object): void {
  if (Array.isArray(value)) {
    if (value.length > MAX_ELEMENTS) throw arrayTooLong(path, value.length, MAX_ELEMENTS);
    return;
  }
  const count = Object.keys(value).length;
  if (count > MAX_PROPERTIES) throw tooManyProperties(path, count, MAX_PROPERTIES);
}

/**
 * Returns the last issue of the first wrong value. Zod checks an integer against the bounds of all integers first, and
 * its own bounds make the better message.
 */
function firstOf(issues: readonly z.core.$ZodIssue[]): z.core.$ZodIssue {
  const path = issues[0]?.path.join();
  return issues.findLast((issue) => issue.path.join() === path) as z.core.$ZodIssue;
}

function faultOf(issue: z.core.$ZodIssue): PublicError {
  const path = issue.path.join(".");
  switch (issue.code) {
    case "unrecognized_keys":
      return unknownParameter([...issue.path, issue.keys[0]].join("."));
    case "invalid_type":
      return issue.input === undefined
        ? missingParameter(path)
        : wrongType(path, TYPE_WORDS[issue.expected] ?? issue.expected, kindOf(issue.input));
    case "invalid_value":
      if (issue.input === undefined) return missingParameter(path);
      return typeof issue.input === "string"
        ? unsupportedValue(path, issue.input, issue.values.map(String))
        : wrongType(path, "a string", kindOf(issue.input));
    case "too_big":
      if (Array.isArray(issue.input)) {
        return arrayTooLong(path, issue.input.length, Number(issue.maximum));
      }
      return typeof issue.input === "string"
        ? stringTooLong(path, characterCount(issue.input), Number(issue.maximum))
        : integerTooLarge(path, Number(issue.input), Number(issue.maximum));
    case "too_small":
      if (Array.isArray(issue.input)) return emptyArray(path);
      return typeof issue.input === "string"
        ? emptyString(path)
        : integerTooSmall(path, Number(issue.input), Number(issue.minimum));
    default:
      return new PublicError("invalid_value", `Invalid '${path}': ${issue.message}`, {
        param: path,
      });
  }
}

const TYPE_WORDS: Partial<Record<string, string>> = {
  string: "a string",
  // Every number of a request is an integer, and zod expects an `int` only in place of another number.
  number: "an integer",
  int: "an integer",
  object: "an object",
  record: "an object",
  array: "an array",
  boolean: "a boolean",
};

/** Returns the text, or throws for one with more characters. */
export function shortText<Text extends string | null>(
  path: string,
  text: Text,
  maxLength: number,
): Text {
  const length = text === null ? 0 : characterCount(text);
  if (length > maxLength) throw stringTooLong(path, length, maxLength);
  return text;
}

export const unknownParameter = (path: string) =>
  new PublicError("unknown_parameter", `Unknown parameter: '${truncate(path)}'.`, { param: path });

export const repeatedParameter = (path: string) =>
  new PublicError("invalid_value", `Invalid '${truncate(path)}': it may be given once only.`, {
    param: path,
  });

export const missingParameter = (path: string) =>
  new PublicError("missing_parameter", `Missing required parameter: '${truncate(path)}'.`, {
    param: path,
  });

export const wrongType = (path: string, expected: string, got: string) =>
  path === ""
    ? new PublicError("invalid_type", `Invalid body: expected ${expected}, but got ${got} instead.`)
    : new PublicError(
        "invalid_type",
        `Invalid type for '${truncate(path)}': expected ${expected}, but got ${got} instead.`,
        { param: path },
      );

export const integerTooSmall = (path: string, value: number, min: number) =>
  new PublicError(
    "integer_too_small",
    `Invalid '${path}': integer below minimum value. Expected a value >= ${min}, but got ${value} instead.`,
    { param: path },
  );

const arrayTooLong = (path: string, length: number, maxLength: number) =>
  new PublicError(
    "array_too_long",
    `Invalid '${truncate(path)}': array too long. Expected an array with maximum length ${maxLength}, but got an array with length ${length} instead.`,
    { param: path },
  );

const emptyArray = (path: string) =>
  new PublicError(
    "empty_array",
    `Invalid '${path}': empty array. Expected an array with minimum length 1, but got an empty array instead.`,
    { param: path },
  );

const emptyString = (path: string) =>
  new PublicError(
    "empty_string",
    `Invalid '${path}': empty string. Expected a string with minimum length 1, but got an empty string instead.`,
    { param: path },
  );
