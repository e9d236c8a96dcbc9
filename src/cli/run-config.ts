/**
 * Makes the configuration of `batchd run`, out of its flags or a file for a server. It must leave out what only a server has:
 * its address, keys, database and bucket.
 */
import { basename, dirname, join, resolve } from "node:path";
import { CommandFailure } from "../client/failure.ts";
import { findUpstreamKey } from "../config/client.ts";
import { checkConfig } from "../config/config.ts";
import { renamed } from "../config/problems.ts";
import type { Config } from "../config/schema.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import type { ResultFormat } from "../contract/results.ts";

export interface RunFlags {
  readonly output: string;
  readonly upstream?: string;
  readonly config?: string;
  readonly model?: string;
  readonly endpoint?: BatchEndpoint;
  readonly concurrency?: number;
  readonly dataDir?: string;
  readonly format: ResultFormat;
  readonly overwrite?: boolean;
  readonly json?: boolean;
}

/** The place of a run is beside its output, where there is room for it; or named after the input. */
export const defaultDataDir = (file: string | null, sha256: string): string =>
  file === null
    ? resolve(`.${nameOf(sha256)}`)
    : join(dirname(resolve(file)), `.${basename(file)}.batchd`);

/** The file for the failed lines of a run whose output is a pipe, which has nothing beside it. */
export const errorsFileFor = ({ dataDir, format }: RunFlags, sha256: string): string =>
  dataDir === undefined ? `${nameOf(sha256)}.errors.${format}` : join(dataDir, `errors.${format}`);

const nameOf = (sha256: string): string => `batchd-${sha256.slice(0, 12)}`;

/** A run has no server, no keys and no database but its own, whatever the configuration says about those. */
const NOT_FOR_RUNS = {
  server: undefined,
  database_url: undefined,
  database: undefined,
  storage: undefined,
  auth: undefined,
  audit: undefined,
  webhooks: undefined,
  projects: undefined,
};

/** The limits protect a server from its clients. A run has none but its user. */
const NO_LIMITS = {
  max_file_bytes: 1e15,
  max_requests_per_batch: 1e9,
  max_embedding_inputs_per_batch: 1e9,
  allow_mixed_models: true,
  completion_windows: ["24h", "30d"],
};

export function configFor(flags: RunFlags, dataDir: string): Config {
  const { upstream, config: path, concurrency } = flags;
  if (upstream === undefined && path === undefined) {
    throw new CommandFailure(
      "no model server is named: --upstream http://localhost:8000/v1, or --config with upstreams",
    );
  }
  if (upstream === undefined && concurrency !== undefined) {
    throw new CommandFailure(
      "--concurrency is for --upstream: max_concurrency of each upstream in --config says how much it takes",
    );
  }
  const values = {
    ...NOT_FOR_RUNS,
    data_dir: dataDir,
    log_level: "silent",
    ...(upstream !== undefined && { upstreams: [upstreamOf(upstream, flags)] }),
    ...(path === undefined && { limits: NO_LIMITS }),
  };
  const checked = checkConfig(path, values);
  if (checked.ok) return checked.config;
  const problems = upstream === undefined ? checked.problems : ofFlags(checked.problems, upstream);
  throw new CommandFailure(problems.join("; "));
}

const ofFlags = (problems: readonly string[], upstream: string) =>
  renamed(problems, {
    "upstreams[0].base_url": "--upstream",
    "upstreams[0].api_key": findUpstreamKey(upstream).keyVariable,
    "upstreams[0].max_concurrency": "--concurrency",
  });

function upstreamOf(url: string, { concurrency }: RunFlags) {
  const { apiKey } = findUpstreamKey(url);
  return {
    name: "upstream",
    base_url: url,
    models: ["*"],
    ...(apiKey !== null && { api_key: apiKey }),
    ...(concurrency !== undefined && { max_concurrency: concurrency }),
  };
}
