/**
 * Configuration: flags beat environment beats file, parsed once, strictly. A key that is not known, a
 * variable that is not set and a value that is not allowed are all reported, each with its path, and
 * nothing starts. The only module that reads the environment.
 */
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { parseDocument } from "yaml";
import { z } from "zod";
import { EVENT_TYPES } from "./contract/event.ts";
import { LOG_LEVELS } from "./log.ts";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const name = z.string().regex(NAME, "use letters, digits, '.', '_' and '-'");

/** A number, also as text: `${PORT}` is text once it is expanded. */
const numberLike = <T extends z.ZodType<number>>(schema: T) =>
  z.preprocess(
    (value) => (typeof value === "string" && /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value),
    schema,
  );
const int = (min: number, max: number) => numberLike(z.int().min(min).max(max));
const seconds = numberLike(z.number().positive().max(86_400));
const graceSeconds = numberLike(z.number().min(0).max(3_600));

/** What may stand in an HTTP header: a key from a file often ends in a newline that nobody sees. */
const secret = z
  .string()
  .regex(/^[\x21-\x7e]+$/, "expected printable ASCII without spaces or line breaks");

const PADDED_BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** `whsec_` and the key in base64; any other text is the key itself. */
const signingSecret = z
  .string()
  .regex(/^\S(?:.*\S)?$/, "expected text without spaces or line breaks around it")
  .refine(
    (text) => !text.startsWith("whsec_") || isPaddedBase64(text.slice("whsec_".length)),
    "expected base64, with its padding, after whsec_",
  );

const isPaddedBase64 = (text: string) => text !== "" && PADDED_BASE64.test(text);

const hasNoCredentials = (text: string) => {
  const url = URL.parse(text);
  return url === null || url.username + url.password === "";
};

const isHost = (text: string) =>
  isIP(text.replace(/^\[(.*)\]$/, "$1")) !== 0 ||
  (!/[:/?#@\\\s]/.test(text) && URL.canParse(`http://${text}`));

/** IPv6 with or without the brackets that it has in a URL. */
const host = z
  .string()
  .refine(isHost, "expected a host name or an address, without scheme, port and path");

const ModelEntry = z.union([
  z.string().min(1),
  z.strictObject({
    name: z.string().min(1),
    /** What the upstream calls it. Left out: the same name. */
    upstream_model: z.string().min(1).optional(),
  }),
]);

const UpstreamEntry = z.strictObject({
  name,
  /** Up to and including `/v1`; the rest of the path comes from the endpoint. */
  base_url: z.url({ protocol: /^https?$/, error: "expected an http:// or https:// address" }),
  api_key: secret.optional(),
  /** Public model names it serves; `"*"` is any other name, unchanged. */
  models: z.array(ModelEntry).min(1),
  /** Requests in flight at once. Raise it until the upstream's throughput stops growing. */
  max_concurrency: int(1, 100_000).default(64),
  /** For one whole answer. A line that needs longer is tried again, a few times. */
  timeout_seconds: seconds.default(600),
});

const KeyEntry = z.strictObject({
  name,
  /** The key itself (best as `${NAME}`), or `sha256:` and its SHA-256 in hexadecimal. */
  key: secret.refine(
    (key) => !key.startsWith("sha256:") || /^sha256:[0-9a-f]{64}$/i.test(key),
    "expected 64 hexadecimal digits after sha256:",
  ),
  project: name.default("default"),
});

const WebhookEntry = z.strictObject({
  name,
  url: z
    .url({ protocol: /^https?$/, error: "expected an http:// or https:// address" })
    .refine(hasNoCredentials, "leave user name and password out of it"),
  secret: signingSecret,
  /** Left out: all. */
  events: z.array(z.enum(EVENT_TYPES)).min(1).optional(),
  /** Left out: batches of all projects. */
  project: name.optional(),
});

const ConfigFile = z.strictObject({
  server: z
    .strictObject({
      host: z.string().min(1).default("127.0.0.1"),
      port: int(0, 65_535).default(8080),
    })
    .prefault({}),
  /** SQLite file and blobs. */
  data_dir: z.string().min(1).default("./data"),
  log_level: z.enum(LOG_LEVELS).default("info"),
  limits: z
    .strictObject({
      max_file_bytes: int(1, Number.MAX_SAFE_INTEGER).default(209_715_200),
      /** Of a file that comes in parts. While it is put together it takes twice this much room. */
      max_upload_bytes: int(1, Number.MAX_SAFE_INTEGER).default(8_589_934_592),
      /** Costs some 50 bytes of memory a line while a file is validated. */
      max_requests_per_batch: int(1, 1_000_000_000).default(50_000),
      /** Texts to embed, summed over the requests of a batch for `/v1/embeddings`. */
      max_embedding_inputs_per_batch: int(1, 1_000_000_000).default(50_000),
      /** Longest input line. An open chunk of lines may take this much memory. */
      max_line_bytes: int(1_024, 268_435_456).default(33_554_432),
      /** Longest answer to one line. In the worst case each request in flight takes this much memory. */
      max_answer_bytes: int(1_024, 268_435_456).default(67_108_864),
    })
    .prefault({}),
  auth: z.strictObject({ keys: z.array(KeyEntry).min(1) }).optional(),
  upstreams: z.array(UpstreamEntry).default([]),
  webhooks: z
    .strictObject({
      endpoints: z.array(WebhookEntry).default([]),
      /** Names and addresses that are delivered to although they are not public. */
      allow_private_hosts: z.array(host).default([]),
    })
    .prefault({}),
  engine: z
    .strictObject({
      /** How long requests in flight may run on after SIGTERM. Keep it under the supervisor's own grace period. */
      drain_grace_seconds: graceSeconds.default(20),
      /** How long requests in flight may run on after a batch is cancelled or expires. */
      stop_grace_seconds: graceSeconds.default(30),
    })
    .prefault({}),
});

export type Config = z.infer<typeof ConfigFile>;
export type UpstreamConfig = Config["upstreams"][number];
export type WebhooksConfig = Config["webhooks"];
export type WebhookConfig = WebhooksConfig["endpoints"][number];
export type KeyConfig = NonNullable<Config["auth"]>["keys"][number];

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
