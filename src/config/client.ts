/**
 * Finds the server that a command of a client talks to, and the key for it. `OPENAI_API_KEY` is sent nowhere but to
 * OpenAI or to `OPENAI_BASE_URL`, so that no other server gets to see it.
 */
import type { Environment } from "./file.ts";

export interface ServerFlags {
  readonly url?: string;
}

/** The address of an API, and the key for it. */
export interface ServerSettings {
  /** The address with the path below which the API is, such as `http://127.0.0.1:8080/v1`. */
  readonly url: string;
  /** It is null for a server that asks for none. */
  readonly apiKey: string | null;
  /** The variable that a key for this server belongs into. */
  readonly keyVariable: KeyVariable;
  /** Whether `--url` names it. The next command then needs the option again. */
  readonly isNamedByFlag: boolean;
  /** The variable that names a proxy on the way there; null without one. */
  readonly proxyVariable: string | null;
  /** Whether Node.js goes through a proxy: NODE_USE_ENV_PROXY says so, which curl and the SDK for Python do without. */
  readonly usesProxies: boolean;
}

type KeyVariable = "BATCHD_API_KEY" | "OPENAI_API_KEY" | "BATCHD_UPSTREAM_API_KEY";

export type ServerResult =
  | { readonly ok: true; readonly server: ServerSettings }
  | { readonly ok: false; readonly problem: string };

const OPENAI_KEY = "OPENAI_API_KEY" as const;
const DEFAULT_URL = "http://127.0.0.1:8080/v1";
const NO_KEY = /[^\x21-\x7e]/;
const OPENAI_ORIGIN = "https://api.openai.com";

/** Returns the server of the flag, of `BATCHD_URL`, of `OPENAI_BASE_URL`, or the one on this machine. */
export function findServer(flags: ServerFlags): ServerResult {
  const { env } = process;
  const named = [
    { name: "--url", text: flags.url },
    { name: "BATCHD_URL", text: env["BATCHD_URL"] },
    { name: "OPENAI_BASE_URL", text: env["OPENAI_BASE_URL"] },
  ].find(({ text }) => text !== undefined && text !== "");
  const text = named?.text ?? DEFAULT_URL;
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) {
    return {
      ok: false,
      problem: `${named?.name} must be an address such as ${DEFAULT_URL}, got "${text}"`,
    };
  }
  const own: KeyVariable = named?.name === "OPENAI_BASE_URL" ? OPENAI_KEY : "BATCHD_API_KEY";
  const key = keyFor(url, env, own);
  // The key itself is not shown.
  if (NO_KEY.test(key.apiKey ?? "")) {
    const problem = `${key.keyVariable} is no key: it has a space, a line break or a letter outside ASCII`;
    return { ok: false, problem };
  }
  const isNamedByFlag = named?.name === "--url";
  const address = { url: apiAddress(url), isNamedByFlag };
  const usesProxies = env["NODE_USE_ENV_PROXY"] === "1";
  const proxyVariable = proxyVariableFor(url, env, usesProxies);
  return { ok: true, server: { ...address, ...key, proxyVariable, usesProxies } };
}

function proxyVariableFor(
  { protocol, hostname }: URL,
  env: Environment,
  usesProxies: boolean,
): string | null {
  const isHere = /^(?:localhost|127\..*|\[::1\])$/.test(hostname);
  const exempt = `${env["NO_PROXY"] ?? ""},${env["no_proxy"] ?? ""}`;
  if (usesProxies ? exempt.includes("*") || exempt.includes(hostname) : isHere) return null;
  const name = protocol === "https:" ? "HTTPS_PROXY" : "HTTP_PROXY";
  return [name, name.toLowerCase()].find((each) => env[each]) ?? null;
}

/** Returns the key for the upstream of a command that sends its requests itself; `apiKey` is null for one without a key. */
export function findUpstreamKey(upstream: string): Pick<ServerSettings, "apiKey" | "keyVariable"> {
  const own = "BATCHD_UPSTREAM_API_KEY";
  const url = URL.parse(upstream);
  return url === null ? { apiKey: null, keyVariable: own } : keyFor(url, process.env, own);
}

/** Returns whether the user wants no colours and nothing that moves. */
export const isDumbTerminal = (): boolean => process.env["TERM"] === "dumb";

/** Adds `/v1` to an address without a path. */
function apiAddress(url: URL): string {
  const path = url.pathname.replace(/\/+$/, "");
  return `${url.origin}${path === "" ? "/v1" : path}`;
}

/** Returns the key in the variable `own`, or the key of OpenAI where it belongs. OpenAI gets no other key. */
function keyFor(
  url: URL,
  env: Environment,
  own: KeyVariable,
): Pick<ServerSettings, "apiKey" | "keyVariable"> {
  if (url.origin === OPENAI_ORIGIN)
    return { apiKey: env[OPENAI_KEY]?.trim() || null, keyVariable: OPENAI_KEY };
  const isNamed = url.origin === URL.parse(env["OPENAI_BASE_URL"] ?? "")?.origin;
  const other = own === OPENAI_KEY ? "BATCHD_API_KEY" : OPENAI_KEY;
  const candidates: readonly KeyVariable[] = isNamed ? [own, other] : [own];
  const keyVariable = candidates.find((name) => env[name]) ?? own;
  return { apiKey: env[keyVariable]?.trim() || null, keyVariable };
}
