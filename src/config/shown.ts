/** A configuration as it may be shown: whatever may be a secret is hidden, and that it is set stays visible. */
import type { Config } from "./schema.ts";

/** Keys whose values are nobody's business. */
const SECRET_KEYS = new Set(["key", "api_key", "secret"]);
const HIDDEN = "…";

export const showConfig = (config: Config): string => JSON.stringify(config, hide, 2);

function hide(key: string, value: unknown): unknown {
  if (SECRET_KEYS.has(key)) return HIDDEN;
  // A header may be an authorization under any name.
  if (key === "headers")
    return Object.fromEntries(Object.keys(value as object).map((name) => [name, HIDDEN]));
  return typeof value === "string" ? hideInAddress(value) : value;
}

/** Names and passwords in front of a host, and parameters of a query that are called like secrets. */
const hideInAddress = (text: string) =>
  text
    .replace(/^(https?:\/\/)[^/?#]*@/i, `$1${HIDDEN}@`)
    .replaceAll(/([?&][^=&#]*(?:key|token|secret|sig|pass)[^=&#]*=)[^&#]+/gi, `$1${HIDDEN}`);
