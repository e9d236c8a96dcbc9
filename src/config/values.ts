/** The kinds of single values that a configuration is made of. */
import { z } from "zod";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
/** Of something that stands in logs and metrics. */
export const name = z.string().regex(NAME, "use letters, digits, '.', '_' and '-'");

/** A number, also as text: `${PORT}` is text once it is expanded. */
const numberLike = <T extends z.ZodType<number>>(schema: T) =>
  z.preprocess(
    (value) => (typeof value === "string" && /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value),
    schema,
  );
export const int = (min: number, max: number) => numberLike(z.int().min(min).max(max));
export const seconds = numberLike(z.number().positive().max(86_400));
export const graceSeconds = numberLike(z.number().min(0).max(3_600));

/** What may stand in an HTTP header: a key from a file often ends in a newline that nobody sees. */
export const secret = z
  .string()
  .regex(/^[\x21-\x7e]+$/, "expected printable ASCII without spaces or line breaks");

export const httpUrl = z.url({
  protocol: /^https?$/,
  error: "expected an http:// or https:// address",
});
