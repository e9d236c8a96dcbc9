/**
 * Notices a change of the configuration file, and reports it once the file is complete.
 *
 * The watcher checks the path once a second, with one `stat` whose cost cannot be measured. The kernel's notices
 * (`fs.watch`) follow the file that the path named at first. They end when an editor or a deployment renames a new file
 * into its place. They stay silent when Kubernetes swaps the link of the folder above, and on network mounts and bind
 * mounts.
 *
 * Not every writer is atomic, and a file that was just truncated is an empty configuration, which is valid. So the
 * watcher must never report a change until two checks in a row have found the same file.
 */
import { stat } from "node:fs/promises";
import type { Clock } from "../clock.ts";
import { loop, Nudge } from "../loop.ts";
import type { Log } from "../telemetry/log.ts";

const POLL_EVERY_MS = 1_000;
const MISSING = "missing";

export interface ConfigWatcherDeps {
  readonly clock: Clock;
  readonly log: Log;
  /** The watch ends when this signal aborts. */
  readonly drain: AbortSignal;
}

export class ConfigWatcher {
  readonly #path: string | null;
  readonly #nudge = new Nudge();
  #isAskedFor = false;
  /** The state of the file when it was last read. */
  #known = MISSING;
  /** The state of the file at the last check. */
  #seen = MISSING;

  private constructor(path: string | null) {
    this.#path = path;
  }

  /**
   * Starts from the current state of the file. Call this before the first read, so that no change is missed in between.
   */
  static async from(path: string | null): Promise<ConfigWatcher> {
    const watch = new ConfigWatcher(path);
    watch.#known = watch.#seen = await watch.#read();
    return watch;
  }

  /** Asks for a reload, even of an unchanged file. A request before {@link run} is remembered. */
  ask(): void {
    this.#isAskedFor = true;
    this.#nudge.now();
  }

  /** Calls `reload` after each change and each request, until the drain. Never rejects. */
  run(reload: () => Promise<void>, deps: ConfigWatcherDeps): Promise<void> {
    const runOnce = async () => {
      if (await this.#isReloadDue()) await reload();
      return false;
    };
    return loop({ ...deps, name: "config", everyMs: POLL_EVERY_MS, nudge: this.#nudge, runOnce });
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

  /** Returns equal texts for the same file with the same bytes. Links are followed. A pipe changes when it is read. */
  async #read(): Promise<string> {
    if (this.#path === null) return MISSING;
    try {
      const found = await stat(this.#path, { bigint: true });
      if (!found.isFile()) return MISSING;
      const { dev, ino, size, mtimeNs, ctimeNs } = found;
      return [dev, ino, size, mtimeNs, ctimeNs].join(":");
    } catch {
      return MISSING;
    }
  }
}
