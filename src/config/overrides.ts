/**
 * The table of all values that flags and environment variables may set. The command line, the reading of the
 * environment and `docs/configuration.md` all follow it.
 */
import type { Environment } from "./file.ts";

interface Override {
  readonly flag: string;
  readonly variable: string;
  /** The key of the file that the flag or variable overrides; null when the file has none. */
  readonly key: string | null;
  readonly text: string;
}

export const OVERRIDES = {
  config: {
    flag: "--config <file>",
    variable: "BATCHD_CONFIG",
    key: null,
    text: "YAML configuration",
  },
  host: {
    flag: "--host <address>",
    variable: "BATCHD_HOST",
    key: "server.host",
    text: "address to listen on",
  },
  port: {
    flag: "--port <number>",
    variable: "BATCHD_PORT",
    key: "server.port",
    text: "port to listen on; 0 takes any free one",
  },
  dataDir: {
    flag: "--data-dir <dir>",
    variable: "BATCHD_DATA_DIR",
    key: "data_dir",
    text: "folder for the database and all files",
  },
  databaseUrl: {
    flag: "--database-url <url>",
    variable: "BATCHD_DATABASE_URL",
    key: "database_url",
    text: "PostgreSQL database, in place of SQLite",
  },
  upstream: {
    flag: "--upstream <url>",
    variable: "BATCHD_UPSTREAM",
    key: null,
    text: "an upstream that serves every model",
  },
} as const satisfies Record<string, Override>;

type OverrideName = keyof typeof OVERRIDES;

export interface Overrides extends Partial<Readonly<Record<OverrideName, string>>> {
  /** The address that applies when the file names none. */
  readonly tracingEndpoint?: string;
  /** The protocol that applies when the file names none. */
  readonly tracingProtocol?: string;
}

/** Reads the overrides. An empty variable counts as unset. */
export function overridesFrom(env: Environment): Overrides {
  const set: Record<string, string> = {};
  const take = (name: keyof Overrides, value: string | undefined) => {
    if (value !== undefined && value !== "") set[name] = value;
  };
  for (const [name, { variable }] of Object.entries(OVERRIDES)) {
    take(name as OverrideName, env[variable]);
  }
  take("tracingEndpoint", tracesEndpointFrom(env));
  take("tracingProtocol", tracesProtocolFrom(env));
  return set;
}

/** Follows OpenTelemetry's names: an address for traces, or the address of a collector that takes every signal. */
function tracesEndpointFrom(env: Environment): string | undefined {
  const collector = env["OTEL_EXPORTER_OTLP_ENDPOINT"]?.replace(/\/+$/, "");
  return env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] || (collector && `${collector}/v1/traces`);
}

const tracesProtocolFrom = (env: Environment) =>
  env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] || env["OTEL_EXPORTER_OTLP_PROTOCOL"];
