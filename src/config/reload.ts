/**
 * Applies a changed configuration while the server runs. A configuration with a problem is refused as a whole: the
 * server keeps the running one, and the log has every problem.
 */

import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { changesBetween, withLiveParts } from "./changes.ts";
import type { ConfigResult } from "./config.ts";
import type { Config } from "./schema.ts";
import { configWarnings } from "./warnings.ts";

export interface ReloadOptions {
  /** The configuration with which the server was started. */
  readonly config: Config;
  readonly load: () => ConfigResult;
  /** Makes a configuration take effect. */
  readonly apply: (config: Config) => void;
  readonly log: Log;
  readonly metrics: Metrics;
}

/** Returns a function that loads the configuration again and applies the parts that need no restart. */
export function reloading(options: ReloadOptions): () => void {
  const { config, load, apply, log, metrics } = options;
  let running = config;
  return () => {
    const loaded = load();
    metrics.configReloaded(loaded.ok ? "ok" : "refused");
    if (!loaded.ok) {
      log.error({ problems: loaded.problems }, "config.refused");
      return;
    }
    const { needRestart, keys, ...upstreams } = changesBetween(running, loaded.config);
    running = withLiveParts(running, loaded.config);
    apply(running);
    log.info({ upstreams, keys }, "config.reloaded");
    for (const warning of configWarnings(running)) log.warn({ warning }, "config.warning");
    if (needRestart.length > 0) log.warn({ keys: needRestart }, "config.restart_needed");
  };
}
