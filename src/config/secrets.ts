/**
 * Lists the secrets of a configuration for the redactor: keys, passwords, values with the name of a secret, and headers
 * that may be one. A plain header (a date, a media type, a word) must stay off the list, because a model may well write
 * the same text.
 */

import type { Environment } from "./file.ts";
import type { LocationConfig } from "./locations.ts";
import { percentDecoded } from "./percent-decoded.ts";
import type { Config } from "./schema.ts";
import type { UpstreamConfig } from "./upstreams.ts";

/** The keys whose values are secrets. */
export const SECRET_KEYS = new Set([
  "key",
  "api_key",
  "secret",
  "secret_access_key",
  "session_token",
  "password",
  "token",
  "credentials_key",
]);
const SECRET_NAME = /key|token|secret|sig|pass|auth|cookie|credential/i;
/** Matches values that are common in texts: dates, versions, media types, addresses. */
const PLAIN_VALUE = /^(?:\d{4}-\d{2}-\d{2}.*|[\w.+*-]+\/[\w.+*;=, -]+|https?:\/\/[^@]*|v?[\d.]+)$/i;
/**
 * Matches texts that may be random. Random texts have letters and digits; words have letters only, unless they are
 * long.
 */
const RANDOM_VALUE = /^(?=.*[a-z])(?=.*\d)\S{8,}$|^\S{16,}$/i;

export function upstreamSecrets(config: UpstreamConfig): string[] {
  return unique([
    config.api_key,
    config.api_key && `Bearer ${config.api_key}`,
    ...secretsInUrl(config.base_url),
    ...secretsInUrl(config.proxy),
    ...Object.entries(config.headers).flatMap(([name, value]) => secretsInHeader(name, value)),
    ...secretsInFields(config.extra_body),
    ...secretsInFields(config.defaults),
  ]);
}

export function locationSecrets(config: LocationConfig): string[] {
  const secrets = Object.entries(config).flatMap(([key, value]) =>
    SECRET_KEYS.has(key) && typeof value === "string" ? [value] : [],
  );
  if (config.kind !== "git" || config.password === undefined) return secrets;
  return [...secrets, basicPair(`${config.username}`, config.password)];
}

/** Returns the form in which the credentials of an address are sent, and in which a server may repeat them. */
export const basicPairOf = ({ username, password }: Pick<URL, "username" | "password">): string =>
  basicPair(percentDecoded(username), percentDecoded(password));

const basicPair = (username: string, password: string) =>
  Buffer.from(`${username}:${password}`).toString("base64");

/** Returns the secrets of the whole configuration. A key that is given as a hash cannot leak. */
export const configSecrets = (config: Config): string[] =>
  unique([
    ...config.upstreams.flatMap(upstreamSecrets),
    config.storage.secret_access_key,
    config.storage.session_token,
    ...secretsInUrl(config.database_url),
    ...secretsInUrl(config.tracing?.endpoint),
    config.deliveries.credentials_key,
    ...config.locations.flatMap(locationSecrets),
    ...(config.auth?.keys ?? []).map(({ key }) => key).filter((key) => !key.startsWith("sha256:")),
    ...config.webhooks.endpoints.flatMap(({ secret, url }) => [secret, ...secretsInUrl(url)]),
  ]);

const HEADER_LISTS = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"];

/** Returns what libraries take from the environment by themselves, and no key of the configuration names. */
export const secretsIn = (env: Environment): string[] =>
  unique([
    env["AWS_SECRET_ACCESS_KEY"],
    env["AWS_SESSION_TOKEN"],
    ...HEADER_LISTS.flatMap((name) => (env[name] ?? "").split(",")).flatMap((pair) => {
      const [name = "", ...value] = pair.split("=");
      return secretsInHeader(name, percentDecoded(value.join("=").trim()));
    }),
  ]);

/** What is not configured, or is empty, is no secret. */
const unique = (secrets: readonly (string | undefined)[]): string[] =>
  [...new Set(secrets)].filter((text): text is string => text !== undefined && text !== "");

function secretsInUrl(url: string | undefined): string[] {
  const parsed = url === undefined ? null : URL.parse(url);
  if (parsed === null) return [];
  const { username, password, searchParams } = parsed;
  const parameters = [...searchParams].filter(([name]) => SECRET_NAME.test(name));
  const secrets = parameters.map(([, value]) => value);
  if (password !== "") {
    secrets.push(password, percentDecoded(password), basicPairOf({ username, password }));
  }
  return secrets;
}

function secretsInHeader(name: string, value: string): string[] {
  const parts = [value, ...value.split(" ").slice(1)];
  if (SECRET_NAME.test(name)) return parts;
  return parts.filter((part) => RANDOM_VALUE.test(part) && !PLAIN_VALUE.test(part));
}

/** Returns the texts under a name that sounds like a secret, at any depth. */
function secretsInFields(fields: unknown, isSecret = false): string[] {
  if (typeof fields === "string") return isSecret ? [fields] : [];
  if (typeof fields !== "object" || fields === null) return [];
  return Object.entries(fields).flatMap(([name, value]) =>
    secretsInFields(value, isSecret || SECRET_NAME.test(name)),
  );
}
