/**
 * Applies a changed configuration while the server runs. A configuration with a problem is refused as a whole: the
 * server keeps the running one, and the log has every problem.
 *
 * A file that was emptied is refused as well, and one that has lost its `auth`. No operator means it: a disk was full, or a
 * program has written the first half. All upstreams would go, or every client could read the results of the others.
 */

import { isDeepStrictEqual } from "node:util";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { changesBetween, withLiveParts } from "./changes.ts";
import type { ConfigResult } from "./config.ts";
import type { Config } from "./schema.ts";

const EMPTIED =
  "the configuration file has no settings any more: write it again, or restart the server if that is meant";
const OPENED =
  "the configuration file has no `auth` any more, so no key would be asked for: write it again, or restart the server if that is meant";

export interface ReloadOptions {
  /** The configuration with which the server was started. */
  readonly config: Config;
  /** Returns what is probably not meant in a configuration that has taken effect. */
  readonly warningsOf: (config: Config) => readonly string[];
  /** Makes a configuration take effect. */
  readonly apply: (config: Config) => void;
  readonly log: Log;
  readonly metrics: Metrics;
}

/**
 * Returns a function that takes a configuration that was loaded again, with warnings of it, and applies the parts that need no
 * restart.
 */
export function reloading(
  options: ReloadOptions,
): (next: ConfigResult, warnings?: readonly string[]) => void {
  const { config, warningsOf, apply, log, metrics } = options;
  let running = config;
  const unlessCutOff = (loaded: ConfigResult): ConfigResult => {
    if (!loaded.ok) return loaded;
    if (loaded.isFileEmpty === true && !isDeepStrictEqual(loaded.config, running)) {
      return { ok: false, problems: [EMPTIED] };
    }
    const isOpened = running.auth !== undefined && loaded.config.auth === undefined;
    return isOpened ? { ok: false, problems: [OPENED] } : loaded;
  };
  return (next, warnings = []) => {
    const loaded = unlessCutOff(next);
    metrics.configReloaded(loaded.ok ? "ok" : "refused");
    if (!loaded.ok) {
      log.error({ problems: loaded.problems }, "config.refused");
      return;
    }
    const { needRestart, keys, ...upstreams } = changesBetween(running, loaded.config);
    running = withLiveParts(running, loaded.config);
    apply(running);
    log.info({ upstreams, keys }, "config.reloaded");
    for (const warning of [...warningsOf(running), ...warnings])
      log.warn({ warning }, "config.warning");
    if (needRestart.length > 0) log.warn({ keys: needRestart }, "config.restart_needed");
  };
}
