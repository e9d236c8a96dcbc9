/** Makes the options of the driver from the configuration. */
import { readFileSync } from "node:fs";
import type { PoolConfig } from "./drizzle.ts";

const CONNECT_TIMEOUT_MS = 5_000;
/** A connection to a server that has gone without a word is noticed by these probes. */
const FIRST_PROBE_AFTER_MS = 10_000;

export interface ConnectionOptions {
  readonly url: string;
  /** The largest number of connections. */
  readonly poolSize: number;
  /** Says whether to encrypt and to check the server. If it is undefined, the `sslmode` of the URL decides. */
  readonly tls?: "off" | "encrypt" | "verify" | undefined;
  /** The file with the certificates, in PEM, that the server is checked against. */
  readonly caFile?: string | undefined;
}

export function connectionOf({ url, poolSize, tls, caFile }: ConnectionOptions): PoolConfig {
  const common = {
    ...{ max: poolSize, application_name: "batchd", connectionTimeoutMillis: CONNECT_TIMEOUT_MS },
    ...{ keepAlive: true, keepAliveInitialDelayMillis: FIRST_PROBE_AFTER_MS },
  };
  if (tls === undefined && caFile === undefined) return { ...common, connectionString: url };
  return { ...common, connectionString: withoutSsl(url), ssl: sslOf(tls ?? "verify", caFile) };
}

function sslOf(tls: "off" | "encrypt" | "verify", caFile: string | undefined) {
  if (tls === "off") return false;
  const ca = caFile === undefined ? {} : { ca: readFileSync(caFile, "utf8") };
  return { ...ca, rejectUnauthorized: tls === "verify" };
}

/** Removes the TLS parameters of the URL, because the driver would prefer them to everything else. */
function withoutSsl(url: string): string {
  const parsed = new URL(url);
  for (const name of [...parsed.searchParams.keys()]) {
    if (name.startsWith("ssl")) parsed.searchParams.delete(name);
  }
  return parsed.href;
}
