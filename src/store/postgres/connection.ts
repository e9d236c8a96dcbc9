/** Makes the options of the driver from the configuration. */
import { readFileSync } from "node:fs";
import type { PoolConfig } from "./drizzle.ts";

const CONNECT_TIMEOUT_MS = 5_000;
/** A connection to a server that has gone without a word is noticed by these probes. */
const FIRST_PROBE_AFTER_MS = 10_000;

export interface ConnectionOptions {
  readonly url: string;
  /** The name of this process on its connections; `batchd` when it is left out. */
  readonly applicationName?: string | undefined;
  /** The largest number of connections. */
  readonly poolSize: number;
  /** Says whether to encrypt and to check the server. If it is undefined, the `sslmode` of the URL decides. */
  readonly tls?: "off" | "encrypt" | "verify" | undefined;
  /** The file with the certificates, in PEM, that the server is checked against. */
  readonly caFile?: string | undefined;
}

/** The options of a pool with the bounds that its users share. */
export interface BoundedPool extends PoolConfig {
  readonly max: number;
  readonly connectionTimeoutMillis: number;
}

export function connectionOf(options: ConnectionOptions): BoundedPool {
  const { poolSize, tls, caFile, applicationName = "batchd" } = options;
  const isNamed = options.applicationName !== undefined;
  const url = isNamed ? without(options.url, /^application_name$/) : options.url;
  const common = {
    max: poolSize,
    application_name: applicationName,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: FIRST_PROBE_AFTER_MS,
  };
  if (tls === undefined && caFile === undefined)
    return { ...common, connectionString: inPlainWords(url) };
  return {
    ...common,
    connectionString: without(url, TLS_PARAMETERS),
    ssl: sslOf(tls ?? "verify", caFile),
  };
}

function sslOf(tls: "off" | "encrypt" | "verify", caFile: string | undefined) {
  if (tls === "off") return false;
  const rejectUnauthorized = tls === "verify";
  if (caFile === undefined) return { rejectUnauthorized };
  let known = readFileSync(caFile, "utf8");
  return {
    rejectUnauthorized,
    /** The driver copies the options for each connection. The file may have other authorities by then, or be gone. */
    get ca(): string {
      try {
        known = readFileSync(caFile, "utf8");
      } catch {
        // The former ones may still do.
      }
      return known;
    },
  };
}

/** The driver takes each of these for `verify-full`, and says so on standard error, between the lines of the log. */
const OTHER_NAMES = /^(?:prefer|require|verify-ca)$/;

function inPlainWords(url: string): string {
  const parsed = new URL(url);
  const { searchParams } = parsed;
  const isOther = OTHER_NAMES.test(searchParams.get("sslmode") ?? "");
  if (!isOther || searchParams.get("uselibpqcompat") === "true") return url;
  searchParams.set("sslmode", "verify-full");
  return parsed.href;
}

const TLS_PARAMETERS = /^ssl/;

/** Removes parameters of the URL, because the driver would prefer them to everything else. */
function without(url: string, names: RegExp): string {
  const parsed = new URL(url);
  for (const name of [...parsed.searchParams.keys()]) {
    if (names.test(name)) parsed.searchParams.delete(name);
  }
  return parsed.href;
}
