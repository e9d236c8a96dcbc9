/**
 * Compares a reloaded configuration with the running one. Some changes take effect at once, the rest at the next start.
 */
import { isDeepStrictEqual } from "node:util";
import { isJsonObject } from "../contract/json-object.ts";
import type { Config } from "./schema.ts";
import type { UpstreamConfig } from "./upstreams.ts";

export interface ConfigChanges {
  /** The names of new upstreams. */
  readonly added: readonly string[];
  readonly removed: readonly string[];
  readonly changed: readonly string[];
  /** The paths of other values that take effect now, such as `limits.max_line_bytes`. */
  readonly keys: readonly string[];
  /** The paths of changed values that wait for a restart, such as `server.port`. */
  readonly needRestart: readonly string[];
}

type Effect = "at_once" | "after_restart";

/** The time at which a change to each group of values takes effect. */
export const TAKES_EFFECT: Readonly<Record<keyof Config, Effect>> = {
  server: "after_restart",
  data_dir: "after_restart",
  storage: "after_restart",
  database_url: "after_restart",
  database: "after_restart",
  log_level: "at_once",
  limits: "at_once",
  auth: "at_once",
  audit: "at_once",
  projects: "at_once",
  locations: "at_once",
  upstreams: "at_once",
  default_model: "at_once",
  tracing: "after_restart",
  webhooks: "at_once",
  deliveries: "at_once",
  prices: "at_once",
  engine: "after_restart",
};

/** `running` is the configuration that the server uses now. */
export function changesBetween(running: Config, loaded: Config): ConfigChanges {
  const before = byName(running.upstreams);
  const after = byName(loaded.upstreams);
  const names = [...after.keys()];
  const changedPaths = (effect: Effect) =>
    differences(partsOf(running, effect), partsOf(loaded, effect), "");
  return {
    added: names.filter((name) => !before.has(name)),
    removed: [...before.keys()].filter((name) => !after.has(name)),
    changed: names.filter(
      (name) => before.has(name) && !isDeepStrictEqual(before.get(name), after.get(name)),
    ),
    keys: changedPaths("at_once").filter((path) => path !== "upstreams"),
    needRestart: changedPaths("after_restart"),
  };
}

/** Returns the running configuration with every part of the loaded one that needs no restart. */
export function withLiveParts(running: Config, loaded: Config): Config {
  return { ...partsOf(loaded, "at_once"), ...partsOf(running, "after_restart") } as Config;
}

const partsOf = (config: Config, effect: Effect): Partial<Config> =>
  Object.fromEntries(
    Object.entries(config).filter(([key]) => TAKES_EFFECT[key as keyof Config] === effect),
  );

const byName = (upstreams: readonly UpstreamConfig[]) =>
  new Map(upstreams.map((upstream) => [upstream.name, upstream]));

/** Compares a list as one value, because its entries have no paths. */
function differences(before: unknown, after: unknown, path: string): string[] {
  if (isDeepStrictEqual(before, after)) return [];
  if (!isJsonObject(before) || !isJsonObject(after)) return [path];
  const keys = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...keys].flatMap((key) =>
    differences(before[key], after[key], path === "" ? key : `${path}.${key}`),
  );
}
