/**
 * Configuration: flags beat environment beats file, parsed once, strictly. A key that is not known, a
 * variable that is not set and a value that is not allowed are all reported, each with its path, and
 * nothing starts. The only module that reads the environment.
 */
import { readFileSync } from "node:fs";
import { parseDocument } from "yaml";
import type { z } from "zod";
import { certificateProblems } from "./certificates.ts";
import { type Config, ConfigFile } from "./schema.ts";

/** What flags and environment may set. */
export interface Overrides {
  readonly config?: string;
  readonly host?: string;
  readonly port?: string;
  readonly dataDir?: string;
  readonly upstream?: string;
  /** Used when the file has none. */
  readonly tracingEndpoint?: string;
}

/** One sentence for each problem, with the path of the value. */
export type ConfigResult =
  | { readonly ok: true; readonly config: Config }
  | { readonly ok: false; readonly problems: readonly string[] };

const SHORTHAND_UPSTREAM_NAME = "upstream";

type Environment = Readonly<Record<string, string | undefined>>;

export function loadConfig(flags: Overrides, env: Environment = process.env): ConfigResult {
  const overrides: Overrides = { ...overridesFrom(env), ...flags };
  const problems: string[] = [];
  const file = overrides.config === undefined ? {} : readYaml(overrides.config, env, problems);
  const parsed = parseConfig(merge(file, overrides, problems));
  if (!parsed.ok) return { ok: false, problems: [...problems, ...parsed.problems] };
  problems.push(...certificateProblems(parsed.config));
  return problems.length > 0 ? { ok: false, problems } : parsed;
}

/** The file that {@link loadConfig} reads; null when none is named. */
export const configFile = (flags: Overrides, env: Environment = process.env): string | null =>
  flags.config ?? overridesFrom(env).config ?? null;

/** A configuration from values, as they stand in the file. */
export function parseConfig(values: unknown): ConfigResult {
  const parsed = ConfigFile.safeParse(values, { reportInput: true });
  if (!parsed.success) return { ok: false, problems: parsed.error.issues.flatMap(describeIssue) };
  const problems = crossChecks(parsed.data);
  return problems.length > 0 ? { ok: false, problems } : { ok: true, config: parsed.data };
}

function overridesFrom(env: Environment): Overrides {
  const set: Record<string, string> = {};
  const take = (key: keyof Overrides, value: string | undefined) => {
    if (value !== undefined && value !== "") set[key] = value;
  };
  take("config", env["BATCHD_CONFIG"]);
  take("host", env["BATCHD_HOST"]);
  take("port", env["BATCHD_PORT"]);
  take("dataDir", env["BATCHD_DATA_DIR"]);
  take("upstream", env["BATCHD_UPSTREAM"]);
  take("tracingEndpoint", tracesEndpointFrom(env));
  return set;
}

/** As OpenTelemetry names it: an address for traces, or that of a collector that takes everything. */
function tracesEndpointFrom(env: Environment): string | undefined {
  const collector = env["OTEL_EXPORTER_OTLP_ENDPOINT"]?.replace(/\/+$/, "");
  return env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] || (collector && `${collector}/v1/traces`);
}

function readYaml(path: string, env: Environment, problems: string[]): unknown {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    problems.push(`cannot read ${path}: ${(cause as Error).message}`);
    return {};
  }
  const document = parseDocument(text);
  if (document.errors.length > 0) {
    problems.push(...document.errors.map(({ message }) => `${path}: ${headOf(message)}`));
    return {};
  }
  return expand(document.toJS() ?? {}, env, [], problems);
}

/** What is wrong and where, without the lines of the file below it: these may hold secrets. */
const headOf = (message: string) => message.split("\n")[0]?.replace(/:$/, "");

/** `${NAME}` in any string takes from the environment. */
function expand(
  value: unknown,
  env: Environment,
  path: readonly (string | number)[],
  problems: string[],
): unknown {
  if (typeof value === "string") {
    return value.replaceAll(/\$\{(\w+)\}/g, (whole, variable: string) => {
      const found = env[variable];
      if (found !== undefined) return found;
      problems.push(`${pathText(path)}: the environment variable ${variable} is not set`);
      return whole;
    });
  }
  if (Array.isArray(value)) {
    return value.map((item, i) => expand(item, env, [...path, i], problems));
  }
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, expand(item, env, [...path, key], problems)]),
  );
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function merge(file: unknown, overrides: Overrides, problems: string[]): unknown {
  if (!isRecord(file)) return file;
  const merged: Record<string, unknown> = { ...file };
  const { host, port, dataDir, upstream, tracingEndpoint } = overrides;
  if (host !== undefined || port !== undefined) {
    merged["server"] = {
      ...(isRecord(file["server"]) ? file["server"] : {}),
      ...(host === undefined ? {} : { host }),
      ...(port === undefined ? {} : { port: portNumber(port, problems) }),
    };
  }
  if (dataDir !== undefined) merged["data_dir"] = dataDir;
  if (tracingEndpoint !== undefined) merged["tracing"] ??= { endpoint: tracingEndpoint };
  if (upstream !== undefined) {
    const configured = Array.isArray(file["upstreams"]) ? file["upstreams"] : [];
    merged["upstreams"] = [
      ...configured,
      { name: SHORTHAND_UPSTREAM_NAME, base_url: upstream, models: ["*"] },
    ];
  }
  return merged;
}

function portNumber(text: string, problems: string[]): number {
  if (/^\d{1,5}$/.test(text) && Number(text) <= 65_535) return Number(text);
  problems.push(`port: expected a number from 0 to 65535, got "${text}"`);
  return 0;
}

const pathText = (path: readonly PropertyKey[]): string =>
  path.reduce<string>(
    (text, step) =>
      typeof step === "number"
        ? `${text}[${step}]`
        : text === ""
          ? String(step)
          : `${text}.${String(step)}`,
    "",
  ) || "config";

function describeIssue(issue: z.core.$ZodIssue): string[] {
  if (issue.code === "unrecognized_keys") {
    return issue.keys.map((key) => `${pathText([...issue.path, key])}: unknown key`);
  }
  if (issue.code === "invalid_type" && issue.input === undefined) {
    return [`${pathText(issue.path)}: required`];
  }
  return [`${pathText(issue.path)}: ${issue.message}`];
}

/** Rules between values, which a schema of single values cannot hold. */
function crossChecks(config: Config): string[] {
  const repeated = (names: readonly string[]) =>
    new Set(names.filter((each, i) => names.indexOf(each) !== i));
  return [
    ...[...repeated(config.upstreams.map((upstream) => upstream.name))].map(
      (each) => `upstreams: two of them are named "${each}"`,
    ),
    ...[...repeated(config.auth?.keys.map((key) => key.name) ?? [])].map(
      (each) => `auth.keys: two of them are named "${each}"`,
    ),
    ...[...repeated(config.webhooks.endpoints.map((endpoint) => endpoint.name))].map(
      (each) => `webhooks.endpoints: two of them are named "${each}"`,
    ),
  ];
}
