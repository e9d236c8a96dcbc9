/**
 * Configuration: flags beat environment beats file, parsed once, strictly. A key that is not known, a
 * variable that is not set and a value that is not allowed are all reported, each with its path, and
 * nothing starts. The only module that reads the environment.
 */
import { readFileSync } from "node:fs";
import { parseDocument } from "yaml";
import type { z } from "zod";
import { type Config, ConfigFile } from "./config-schema.ts";

/** What flags and environment may set. */
export interface Overrides {
  readonly config?: string;
  readonly host?: string;
  readonly port?: string;
  readonly dataDir?: string;
  readonly upstream?: string;
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
  return problems.length > 0 ? { ok: false, problems } : parsed;
}

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
  return set;
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
    problems.push(...document.errors.map((error) => `${path}: ${error.message.split("\n")[0]}`));
    return {};
  }
  return expand(document.toJS() ?? {}, env, [], problems);
}

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
  const { host, port, dataDir, upstream } = overrides;
  if (host !== undefined || port !== undefined) {
    merged["server"] = {
      ...(isRecord(file["server"]) ? file["server"] : {}),
      ...(host === undefined ? {} : { host }),
      ...(port === undefined ? {} : { port: portNumber(port, problems) }),
    };
  }
  if (dataDir !== undefined) merged["data_dir"] = dataDir;
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
