/**
 * A configuration as it may be shown: whatever may be a secret is redacted, and that it is set stays visible. A text
 * that the operator chose freely is a secret until it is known not to be one.
 */
import type { Config } from "./schema.ts";

const REDACTED = "…";
/** Keys whose values are secrets. */
const SECRET_KEYS = new Set(["key", "api_key", "secret"]);
/** Mappings that may hold a secret under any name. */
const FREE_MAPPINGS = new Set(["headers", "extra_body", "defaults"]);

export const redactConfig = (config: Config): string => JSON.stringify(config, redact, 2);

function redact(key: string, value: unknown): unknown {
  if (SECRET_KEYS.has(key)) return REDACTED;
  if (FREE_MAPPINGS.has(key)) return withoutTexts(value);
  // A path is often all that protects a webhook.
  if (key === "url") return addressOnly(String(value));
  return typeof value === "string" ? redactAddress(value) : value;
}

/** The same without its texts. Numbers and switches stay. */
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

/** Names and passwords in front of a host, and the values of its query. */
const redactAddress = (text: string) =>
  text
    .replace(/^(https?:\/\/)[^/?#]*@/i, `$1${REDACTED}@`)
    .replace(
      /^(https?:\/\/[^?#]*)([?#].*)$/i,
      (_, address: string, rest: string) =>
        address + rest.replaceAll(/(^#|=)[^&#]+/g, `$1${REDACTED}`),
    );
