/**
 * Applies a changed configuration while the server runs. A configuration with a problem is refused as a whole: the
 * server keeps the running one, and the log has every problem.
 *
 * A file that was emptied is refused as well. No operator means it: a disk was full, or a program is about to write. It would
 * take away all upstreams, and all keys with them, so that every client could read the results of the others.
 */

import { isDeepStrictEqual } from "node:util";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { changesBetween, withLiveParts } from "./changes.ts";
import type { ConfigResult } from "./config.ts";
import type { Config } from "./schema.ts";
import { configWarnings } from "./warnings.ts";

const EMPTIED =
  "the configuration file has no settings any more: write it again, or restart the server if that is meant";

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
  const loadUnlessEmptied = (): ConfigResult => {
    const loaded = load();
    if (!loaded.ok || loaded.isFileEmpty !== true) return loaded;
    return isDeepStrictEqual(loaded.config, running) ? loaded : { ok: false, problems: [EMPTIED] };
  };
  return () => {
    const loaded = loadUnlessEmptied();
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
