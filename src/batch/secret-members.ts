/**
 * Removes credentials from parameters before a run record shows them. Some bodies have such: LiteLLM takes an `api_key`, and
 * a tool of the kind MCP has `authorization` and `headers`. A run record goes to buckets and repositories, where more people
 * read it than may know a key.
 *
 * A member is taken for a credential by its name. Its text becomes a mask; all texts below `headers` and the like do.
 */

const MASK = "[redacted]";
/** Names are compared in small letters, without dashes and underscores. `max_tokens` is none of them. */
const SECRET =
  /apikey|accesskey|privatekey|subscriptionkey|secret|passw|passphrase|signature|authorization|credential|^(?:auth|key|pwd|sig|jwt)$|^(?:\w*(?:access|api|auth|bearer|session|security|refresh|id|ad|hf|sas))?token$/;
const ALL_BELOW = /headers$|cookie|credential|authorization|^auth$/;
/** The user and the password in an address. */
const USER_INFO = /\/\/[^/?#\s]*@/g;
/** What an address has behind its path. Servers of the kind MCP take their keys there. */
const PARAMETER = /([?&#]([^=?&#\s]+)=)[^&#\s]*/g;

const plainOf = (name: string) => name.toLowerCase().replaceAll(/[-_]/g, "");

/** Returns the value of a member without credentials. */
export function withoutSecrets(name: string, value: unknown): unknown {
  const plain = plainOf(name);
  if (ALL_BELOW.test(plain)) return masked(value);
  if (typeof value !== "string") return mapMembers(value);
  return SECRET.test(plain) ? MASK : withoutPasswords(value);
}

function mapMembers(value: unknown): unknown {
  if (typeof value === "string") return withoutPasswords(value);
  if (Array.isArray(value)) return value.map(mapMembers);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [name, withoutSecrets(name, each)]),
  );
}

/** Masks the credentials in addresses. */
function withoutPasswords(text: string): string {
  return text
    .replaceAll(USER_INFO, `//${MASK}@`)
    .replaceAll(PARAMETER, (whole: string, start: string, name: string) =>
      SECRET.test(plainOf(name)) ? start + MASK : whole,
    );
}

/** Returns the value with a mask in the place of every text in it. */
function masked(value: unknown): unknown {
  if (typeof value === "string") return MASK;
  if (Array.isArray(value)) return value.map(masked);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, masked(each)]));
}
