/**
 * Any JSON object, as the client wrote it. `z.record` makes a copy without a key named `__proto__`, and a template is to
 * keep all of its keys.
 */
import { z } from "zod";

const isObject = (value: unknown) =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export const JsonObject = z
  .unknown()
  .check(({ value, issues }) => {
    if (!isObject(value)) issues.push({ code: "invalid_type", expected: "record", input: value });
  })
  .meta({ type: "object", additionalProperties: {} }) as unknown as z.ZodType<
  Readonly<Record<string, unknown>>
>;
