/**
 * Keeps JSON objects as the client wrote them. `z.record` makes a copy without a key named `__proto__`, and templates
 * and metadata are to keep all of their keys.
 */
import { z } from "zod";

export const isJsonObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export const JsonObject = z
  .unknown()
  .check(({ value, issues }) => {
    if (!isJsonObject(value))
      issues.push({ code: "invalid_type", expected: "record", input: value });
  })
  .meta({ type: "object", additionalProperties: {} }) as unknown as z.ZodType<
  Readonly<Record<string, unknown>>
>;

/** An object whose values are texts. */
export const TextsObject = z
  .unknown()
  .check(({ value, issues }) => {
    if (!isJsonObject(value)) {
      issues.push({ code: "invalid_type", expected: "record", input: value });
      return;
    }
    for (const [key, input] of Object.entries(value)) {
      if (typeof input === "string") continue;
      issues.push({ code: "invalid_type", expected: "string", input, path: [key] });
    }
  })
  .meta({
    type: "object",
    propertyNames: { type: "string" },
    additionalProperties: { type: "string" },
  }) as unknown as z.ZodType<Readonly<Record<string, string>>>;
