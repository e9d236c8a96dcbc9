/** What a configuration that is loaded again changes: some of it takes effect at once, the rest at the next start. */
import { isDeepStrictEqual } from "node:util";
import type { Config } from "./schema.ts";
import type { UpstreamConfig } from "./upstreams.ts";

export interface ConfigChanges {
  /** Names of upstreams. */
  readonly added: readonly string[];
  readonly removed: readonly string[];
  readonly changed: readonly string[];
  /** Paths of values that differ and wait for a restart, such as `server.port`. */
  readonly needRestart: readonly string[];
}

/** Paths of values that a running server takes on. */
const LIVE = ["upstreams", "default_model", "limits.allow_mixed_models"];

/** `running` is what the server goes by now. */
export function changesBetween(running: Config, loaded: Config): ConfigChanges {
  const before = byName(running.upstreams);
  const after = byName(loaded.upstreams);
  const names = [...after.keys()];
  return {
    added: names.filter((name) => !before.has(name)),
    removed: [...before.keys()].filter((name) => !after.has(name)),
    changed: names.filter(
      (name) => before.has(name) && !isDeepStrictEqual(before.get(name), after.get(name)),
    ),
    needRestart: differences(running, loaded, "").filter((path) => !LIVE.includes(path)),
  };
}

/** The running configuration with everything of the loaded one that needs no restart. */
export function withLiveParts(running: Config, loaded: Config): Config {
  const { upstreams, default_model, limits } = loaded;
  const { allow_mixed_models } = limits;
  return {
    ...running,
    upstreams,
    default_model,
    limits: { ...running.limits, allow_mixed_models },
  };
}

const byName = (upstreams: readonly UpstreamConfig[]) =>
  new Map(upstreams.map((upstream) => [upstream.name, upstream]));

const isGroup = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Lists are one value: their entries have no place of their own. */
function differences(before: unknown, after: unknown, path: string): string[] {
  if (isDeepStrictEqual(before, after)) return [];
  if (!isGroup(before) || !isGroup(after)) return [path];
  const keys = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...keys].flatMap((key) =>
    differences(before[key], after[key], path === "" ? key : `${path}.${key}`),
  );
}
