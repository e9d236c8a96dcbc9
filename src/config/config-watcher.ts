/**
 * Notices that the configuration file is another one, and tells when it is whole.
 *
 * The file is looked at by its path, once a second. The notices of the kernel (`fs.watch`) belong to what a path
 * led to once: they end when an editor or a deployment renames a new file into its place, say nothing when Kubernetes
 * swaps the link of the folder above, and do not cross network mounts and bind mounts. One `stat` a second misses none
 * of these and costs nothing that can be measured.
 *
 * Writers are not all atomic. A file that has just been truncated is an empty configuration, and a valid one; so a
 * change counts once two looks in a row have seen the same file.
 */
import { stat } from "node:fs/promises";
import type { Clock } from "../clock.ts";
import { loop, Nudge } from "../loop.ts";
import type { Log } from "../telemetry/log.ts";

const LOOK_EVERY_MS = 1_000;
const MISSING = "missing";

export interface ConfigWatcherDeps {
  readonly clock: Clock;
  readonly log: Log;
  /** Ends the watch. */
  readonly drain: AbortSignal;
}

export class ConfigWatcher {
  readonly #path: string | null;
  readonly #nudge = new Nudge();
  #isAskedFor = false;
  /** What the file was when it was read last. */
  #known = MISSING;
  /** What the last look saw. */
  #seen = MISSING;

  private constructor(path: string | null) {
    this.#path = path;
  }

  /** To be called before the file is read for the first time, so that no change falls in between. */
  static async from(path: string | null): Promise<ConfigWatcher> {
    const watch = new ConfigWatcher(path);
    watch.#known = watch.#seen = await watch.#read();
    return watch;
  }

  /** Asks for a reload whatever the file is. Before {@link run} it is remembered. */
  ask(): void {
    this.#isAskedFor = true;
    this.#nudge.now();
  }

  /** Calls `reload` at each change, and when it is asked for, until the drain. Never rejects. */
  run(reload: () => void, deps: ConfigWatcherDeps): Promise<void> {
    const runOnce = async () => {
      if (await this.#isReloadDue()) reload();
      return false;
    };
    return loop({ ...deps, name: "config", everyMs: LOOK_EVERY_MS, nudge: this.#nudge, runOnce });
  }

  async #isReloadDue(): Promise<boolean> {
    const before = this.#seen;
    this.#seen = await this.#read();
    const isSettled = this.#seen === before && this.#seen !== this.#known;
    if (!isSettled && !this.#isAskedFor) return false;
    this.#isAskedFor = false;
    this.#known = this.#seen;
    return true;
  }

  /** Equal for the same file with the same bytes; links are followed. */
  async #read(): Promise<string> {
    if (this.#path === null) return MISSING;
    try {
      const { dev, ino, size, mtimeNs, ctimeNs } = await stat(this.#path, { bigint: true });
      return [dev, ino, size, mtimeNs, ctimeNs].join(":");
    } catch {
      return MISSING;
    }
  }
}
