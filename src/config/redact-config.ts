/**
 * Redacts a configuration for printing. A redacted value stays visible as a set value, because an operator needs to see
 * that. Every text that the operator chose freely counts as a secret, unless it is known to be none.
 */
import type { Config } from "./schema.ts";
import { SECRET_KEYS } from "./secrets.ts";

const REDACTED = "…";
/** The mappings that may hold a secret under any name. */
const FREE_MAPPINGS = new Set(["headers", "extra_body", "defaults"]);

export const redactConfig = (config: Config): string => JSON.stringify(config, redact, 2);

function redact(key: string, value: unknown): unknown {
  if (SECRET_KEYS.has(key)) return REDACTED;
  if (FREE_MAPPINGS.has(key)) return withoutTexts(value);
  // The path is often the only protection of a webhook.
  if (key === "url") return addressOnly(String(value));
  return typeof value === "string" ? redactAddress(value) : value;
}

/** Redacts all texts, and keeps numbers and switches. */
function withoutTexts(value: unknown): unknown {
  if (typeof value === "string") return REDACTED;
  if (Array.isArray(value)) return value.map(withoutTexts);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withoutTexts(item)]));
}

function addressOnly(text: string): string {
  const { origin, pathname, search } = new URL(text);
  return pathname === "/" && search === "" ? origin : `${origin}/${REDACTED}`;
}

/** Redacts the name and password in front of a host, and the values of the query. */
const redactAddress = (text: string) =>
  text
    .replace(/^([a-z][a-z0-9+.-]*:\/\/)[^/?#]*@/i, `$1${REDACTED}@`)
    .replace(
      /^([a-z][a-z0-9+.-]*:\/\/[^?#]*)([?#].*)$/i,
      (_, address: string, rest: string) =>
        address + rest.replaceAll(/(^#|=)[^&#]+/g, `$1${REDACTED}`),
    );
