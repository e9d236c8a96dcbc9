/** The types of single values in a configuration. */
import { isIP } from "node:net";
import { z } from "zod";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
/** A name for logs and metrics. */
export const name = z.string().regex(NAME, "use letters, digits, '.', '_' and '-'");

/** A number or its text: `${PORT}` is a text once it is expanded. */
const numberLike = <T extends z.ZodType<number>>(schema: T) =>
  z.preprocess(
    (value) => (typeof value === "string" && /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value),
    schema,
  );
export const int = (min: number, max: number) => numberLike(z.int().min(min).max(max));

/** The units in lower case, each with its size in the unit of a plain number. */
type Units = Readonly<Record<string, number>>;

const BYTES: Units = {
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};
const SECONDS: Units = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400 };

/** Converts `200MB` to a number. A text of another form stays as it is, and the schema refuses it. */
function fromText(value: unknown, units: Units): unknown {
  if (typeof value !== "string") return value;
  const [, digits, unit] = /^(\d+(?:\.\d+)?) ?([a-z]+)$/i.exec(value.trim()) ?? [];
  const factor = units[unit?.toLowerCase() ?? ""];
  if (digits === undefined || factor === undefined) return value;
  // The rounding removes errors of binary fractions: 1.1GB must not become 1100000000.0000002.
  return Number((Number(digits) * factor).toPrecision(15));
}

const quantity = <T extends z.ZodType<number>>(schema: T, units: Units) =>
  z.preprocess((value) => fromText(value, units), numberLike(schema));

/** A size in bytes. `200MB` is decimal, `200MiB` binary. */
export function bytes(min: number, max: number) {
  const error = `expected from ${min} to ${max} bytes: a plain number, or one with a unit, such as 200MB (decimal) or 200MiB (binary)`;
  return quantity(z.int({ error }).min(min, { error }).max(max, { error }), BYTES).meta({
    unit: "bytes",
  });
}

function duration(schema: (error: string) => z.ZodType<number>, range: string) {
  const error = `expected ${range}: a plain number of seconds, or one with a unit, such as 500ms, 30s, 10m, 2h or 1d`;
  return quantity(schema(error), SECONDS).meta({ unit: "seconds" });
}

export const seconds = duration(
  (error) => z.number({ error }).positive({ error }).max(86_400, { error }),
  "more than 0 and at most a day",
);
export const leaseSeconds = duration(
  (error) => z.number({ error }).min(3, { error }).max(600, { error }),
  "at least 3 seconds and at most 10 minutes",
);
export const graceSeconds = duration(
  (error) => z.number({ error }).min(0, { error }).max(3_600, { error }),
  "at most an hour",
);

export const lifetimeSeconds = duration(
  (error) => z.number({ error }).min(1, { error }).max(315_360_000, { error }),
  "at least a second and at most ten years (3650d)",
);

/** Says how a text is written, and that it is empty if it is: a variable of the environment may be set to nothing. */
export const written = (how: string) => ({
  error: ({ input }: { readonly input?: unknown }) =>
    `expected ${how}${input === "" ? ", got an empty text" : ""}`,
});

/**
 * A text that may stand in an HTTP header. A key from a file often ends in an invisible newline, which HTTP would
 * refuse.
 */
export const secret = z
  .string()
  .regex(/^[\x21-\x7e]+$/, written("printable ASCII without spaces or line breaks"));

const addressSuchAs = (example: string) =>
  z.url({
    protocol: /^https?$/,
    error: `expected an http:// or https:// address, such as ${example}`,
  });

export const httpUrl = addressSuchAs("http://localhost:8000");

/** The address of an API, whose paths most servers have below `/v1`. */
export const apiUrl = addressSuchAs("http://localhost:8000/v1");

/** An address that everyone may see. */
export const openHttpUrl = httpUrl.refine((text) => {
  const url = URL.parse(text);
  return url === null || url.username + url.password === "";
}, "leave user name and password out of it");

const DATABASE_URL =
  "expected an address such as postgres://user:password@host:5432/database, with %23 for # in a password, %2F for /, %3F for ? and %40 for @";

/**
 * A password that is put in as it is may end the address too early. What is left of it would be taken for a host or a
 * database, and stand in messages.
 */
export const databaseUrl = z
  .url({ protocol: /^postgres(?:ql)?$/, error: DATABASE_URL })
  .refine((text) => {
    const url = URL.parse(text);
    return url === null || (!text.includes("#") && !url.pathname.includes("@"));
  }, DATABASE_URL);

const isHost = (text: string) =>
  isIP(text.replace(/^\[(.*)\]$/, "$1")) !== 0 ||
  (!/[:/?#@\\\s]/.test(text) && URL.canParse(`http://${text}`));

/** A host name or an address. IPv6 may have the brackets of a URL. */
export const host = z
  .string()
  .refine(isHost, "expected a host name or an address, without scheme, port and path");

/** A host name or an address to listen on, as the system takes it. */
export const listenHost = z
  .string()
  .min(1)
  .refine(
    (text) => isIP(text) !== 0 || !/[:/[\]\s]/.test(text),
    "expected a host name or an address, without scheme, brackets and port",
  );
