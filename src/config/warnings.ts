/**
 * Warns about values that are allowed and probably mistakes, in one sentence each. The checks must never open a
 * connection.
 */
import { resolve } from "node:path";
import { isLoopback } from "./loopback.ts";
import type { Role } from "./role.ts";
import type { Config } from "./schema.ts";
import { isServed, type UpstreamConfig } from "./upstreams.ts";

interface Server {
  /** A process with the role `api` needs no upstream to create batches. */
  readonly role: Role;
  /** Whether its API asks for no key. Keys may have been made that the configuration does not have. */
  readonly isOpen: boolean;
}

export function configWarnings(config: Config, { role, isOpen }: Server): string[] {
  const warnings: string[] = [];
  const { host } = config.server;
  if (isOpen && !isLoopback(host)) {
    warnings.push(
      `every client that can reach ${host} can read and run everything: no keys are configured (auth.keys)`,
    );
  }
  if (config.upstreams.length === 0 && role !== "api") {
    warnings.push(
      "no upstream is configured, so every batch will fail with model_not_found: start with --upstream URL or --config FILE",
    );
  }
  const shellWord = /^(?:~|\$\w+)(?=\/|$)/.exec(config.data_dir)?.[0];
  if (shellWord !== undefined) {
    warnings.push(
      `the data folder is ${resolve(config.data_dir)}, as only a shell takes ${shellWord} for another folder: write data_dir out`,
    );
  }
  return [
    ...warnings,
    ...config.upstreams.flatMap(baseUrlWarnings),
    ...modelWarnings(config),
    ...quotaWarnings(config),
    ...tracingWarnings(config),
  ];
}

/** Matches the path of an endpoint at the end of an address. batchd appends the path itself. */
const ENDPOINT_PATH =
  /\/(?:chat\/completions|completions|embeddings|responses|moderations|models)\/*$/;
/** Matches a version in the path. Google and others have versions such as `v1beta`. */
const VERSION_SEGMENT = /\/v\d\w*(?:\/|$)/;

function baseUrlWarnings({ name, base_url, azure }: UpstreamConfig): string[] {
  if (azure !== undefined) return [];
  const { pathname } = new URL(base_url);
  const where = `the base_url of the upstream ${name}`;
  const endpoint = ENDPOINT_PATH.exec(pathname)?.[0];
  if (endpoint !== undefined) {
    return [`${where} ends in ${endpoint}, which batchd appends itself: leave it out`];
  }
  return VERSION_SEGMENT.test(pathname)
    ? []
    : [`${where} has no /v1 in it, at which most servers have their API: is one missing?`];
}

/** Warns about a default model that no upstream serves: every batch that relies on it would fail. */
function modelWarnings({ default_model: model, upstreams }: Config): string[] {
  if (model === undefined || upstreams.length === 0) return [];
  return isServed(upstreams, model) ? [] : [`no upstream serves the default_model ${model}`];
}

/** Warns about quotas of cost that nothing counts: their projects might spend any amount. */
function quotaWarnings({ projects, prices }: Config): string[] {
  if (prices.length > 0) return [];
  const limited = projects.filter(({ quotas }) => quotas.cost_per_month !== undefined);
  return limited.map(
    ({ name }) =>
      `cost_per_month of the project ${name} limits nothing, as no prices are configured (prices)`,
  );
}

/** Warns about the address of a receiver alone. It is as other programs take it, which append the path themselves. */
function tracingWarnings({ tracing }: Config): string[] {
  if (tracing === undefined || new URL(tracing.endpoint).pathname !== "/") return [];
  return [
    "tracing.endpoint has no path, and most receivers take traces at /v1/traces: is it missing?",
  ];
}
