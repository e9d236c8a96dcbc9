/**
 * Reads the configuration: flags override the environment, and the environment overrides the file. Every unknown key,
 * unset variable and wrong value is reported with its path. The server must never start on a configuration with a
 * problem. No other module reads the environment.
 */
import { createHash } from "node:crypto";
import { accessSync, constants, statSync } from "node:fs";
import { devNull } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { isJsonObject } from "../contract/json-object.ts";
import { certificateProblems } from "./certificates.ts";
import { type Environment, readConfigFile } from "./file.ts";
import { locationProblems, programProblems } from "./locations.ts";
import { type Overrides, overridesFrom } from "./overrides.ts";
import { describeIssue, renamed } from "./problems.ts";
import { type Config, ConfigFile, type KeyConfig } from "./schema.ts";
import { secretsIn } from "./secrets.ts";
import { storageProblems } from "./storage.ts";

/** `problems` has one sentence for each problem, with the path of the value. */
export type ConfigResult =
  | {
      readonly ok: true;
      readonly config: Config;
      /** The file says nothing: it is empty, or has only comments. */
      readonly isFileEmpty?: true;
    }
  | { readonly ok: false; readonly problems: readonly string[] };

const SHORTHAND_UPSTREAM_NAME = "upstream";

export function loadConfig(flags: Overrides, env: Environment = process.env): ConfigResult {
  const overrides: Overrides = { ...overridesFrom(env), ...flags };
  return load(overrides.config, env, (file, problems) => merge(file, overrides, problems));
}

/**
 * Loads the configuration of a running server again. A pipe was read to its end, and would hold up the whole process until it
 * is written again.
 */
export function loadConfigAgain(flags: Overrides, env: Environment = process.env): ConfigResult {
  const { config: path } = { ...overridesFrom(env), ...flags };
  if (path === undefined || path === devNull || !isOtherThanFile(path))
    return loadConfig(flags, env);
  return { ok: false, problems: [`${path} is no file, and is not read again: restart the server`] };
}

/** Returns false as well for a path that leads nowhere: reading it says why. */
function isOtherThanFile(path: string): boolean {
  try {
    return !statSync(path).isFile();
  } catch {
    return false;
  }
}

/** Reads a file, or nothing, and puts `values` in the place of what it says. The environment overrides nothing. */
export const checkConfig = (
  path: string | undefined,
  values: Readonly<Record<string, unknown>>,
): ConfigResult =>
  load(path, process.env, (file) => ({
    values: isJsonObject(file) ? { ...file, ...values } : file,
  }));

interface Changed {
  readonly values: unknown;
  /** The paths of values that are from no file, with what their user calls them. */
  readonly names?: Readonly<Record<string, string>>;
}

function load(
  path: string | undefined,
  env: Environment,
  change: (file: unknown, problems: string[]) => Changed,
): ConfigResult {
  const problems: string[] = [];
  const file = path === undefined ? {} : readConfigFile(path, env, problems);
  const { values, names = {} } = change(file, problems);
  const parsed = parseConfig(values);
  if (!parsed.ok) return { ok: false, problems: [...problems, ...renamed(parsed.problems, names)] };
  problems.push(...certificateProblems(parsed.config));
  problems.push(...programProblems(parsed.config, (program) => isInPath(program, env)));
  if (problems.length > 0) return { ok: false, problems };
  const isFileEmpty = path !== undefined && isJsonObject(file) && Object.keys(file).length === 0;
  return isFileEmpty ? { ...parsed, isFileEmpty } : parsed;
}

function isInPath(program: string, env: Environment): boolean {
  const folders = (env["PATH"] ?? "").split(delimiter).filter((folder) => folder !== "");
  return folders.some((folder) => {
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

/** The variables that programs get which batchd starts: how to find others, and how to reach the network. */
const PROGRAM_VARIABLES = [
  "PATH",
  "SSH_AUTH_SOCK",
  "SSL_CERT_FILE",
  "SSL_CERT_DIR",
  "TMPDIR",
  "http_proxy",
  "https_proxy",
  "no_proxy",
  "HTTPS_PROXY",
  "NO_PROXY",
  "all_proxy",
  "ALL_PROXY",
];

/** Returns the environment of programs that batchd starts. It has no secret of batchd's own. */
export const programEnvironment = (env: Environment = process.env): Record<string, string> =>
  Object.fromEntries(
    PROGRAM_VARIABLES.flatMap((name) => {
      const value = env[name];
      return value === undefined ? [] : [[name, value]];
    }),
  );

/** Returns the secrets of the environment that may be sent without being in the configuration. */
export const environmentSecrets = (): string[] => secretsIn(process.env);

/** Returns the path of the file that {@link loadConfig} reads; null when none is named. */
export const configFile = (flags: Overrides): string | null =>
  flags.config ?? overridesFrom(process.env).config ?? null;

/** Parses a configuration from the values in a file. */
export function parseConfig(values: unknown): ConfigResult {
  const parsed = ConfigFile.safeParse(values, { reportInput: true });
  if (!parsed.success) {
    const { issues } = parsed.error;
    const problems = issues.flatMap((issue) => describeIssue(issue, ConfigFile));
    return { ok: false, problems: [...new Set(problems)] };
  }
  const problems = crossChecks(parsed.data);
  return problems.length > 0 ? { ok: false, problems } : { ok: true, config: parsed.data };
}

function merge(file: unknown, overrides: Overrides, problems: string[]): Changed {
  if (!isJsonObject(file)) return { values: file };
  const merged: Record<string, unknown> = { ...file };
  const { host, port, dataDir, databaseUrl, upstream, tracingEndpoint, tracingProtocol } =
    overrides;
  if (host !== undefined || port !== undefined) {
    merged["server"] = {
      ...(isJsonObject(file["server"]) ? file["server"] : {}),
      ...(host === undefined ? {} : { host }),
      ...(port === undefined ? {} : { port: portNumber(port, problems) }),
    };
  }
  if (dataDir !== undefined) merged["data_dir"] = dataDir;
  if (databaseUrl !== undefined) merged["database_url"] = databaseUrl;
  if (tracingEndpoint !== undefined) merged["tracing"] ??= { endpoint: tracingEndpoint };
  if (tracingProtocol !== undefined && isJsonObject(merged["tracing"])) {
    merged["tracing"] = { protocol: tracingProtocol, ...merged["tracing"] };
  }
  if (upstream !== undefined) {
    const configured = Array.isArray(file["upstreams"]) ? file["upstreams"] : [];
    merged["upstreams"] = [
      ...configured,
      { name: SHORTHAND_UPSTREAM_NAME, base_url: upstream, models: ["*"] },
    ];
    return { values: merged, names: { [`upstreams[${configured.length}].base_url`]: "upstream" } };
  }
  return { values: merged };
}

function portNumber(text: string, problems: string[]): number {
  if (/^\d{1,5}$/.test(text) && Number(text) <= 65_535) return Number(text);
  problems.push(`port: expected a number from 0 to 65535, got "${text}"`);
  return 0;
}

/** Checks rules between values, which the schemas of single values cannot express. */
function crossChecks(config: Config): string[] {
  const named = {
    locations: config.locations,
    upstreams: config.upstreams,
    "auth.keys": config.auth?.keys ?? [],
    projects: config.projects,
    "webhooks.endpoints": config.webhooks.endpoints,
  };
  return [
    ...storageProblems(config.storage, config.limits.max_upload_bytes),
    // Over links, `runtime/location-folders.ts` checks it: a share that is gone answers no question.
    ...locationProblems(config, resolve),
    ...Object.entries(named).flatMap(([path, entries]) =>
      repeatedNames(entries).map((each) => `${path}: two of them are named "${each}"`),
    ),
    ...sharedKeys(named["auth.keys"]),
  ];
}

function repeatedNames(entries: readonly { readonly name: string }[]): string[] {
  const seen = new Set<string>();
  const repeated = new Set<string>();
  for (const { name } of entries) (seen.has(name) ? repeated : seen).add(name);
  return [...repeated];
}

/** A request with such a key would belong to either entry, and these may have different projects. */
function sharedKeys(keys: readonly KeyConfig[]): string[] {
  const digest = (key: string) =>
    key.startsWith("sha256:")
      ? key.toLowerCase()
      : `sha256:${createHash("sha256").update(key).digest("hex")}`;
  return [...Map.groupBy(keys, ({ key }) => digest(key)).values()]
    .filter(({ length }) => length > 1)
    .map((same) => `auth.keys: ${same.map(({ name }) => `"${name}"`).join(" and ")} are one key`);
}
