/**
 * The loops of the engine by name. Each repeats its pass at intervals, and at once when it is nudged. They end with the
 * drain. Nothing may depend on a nudge, because only a pass that asks the store finds all work.
 */
import type { Clock } from "../../clock.ts";
import { loop, Nudge, type RunOnce } from "../../loop.ts";
import type { Log } from "../../telemetry/log.ts";
import { SideBySide, type SideBySideOptions } from "./side-by-side.ts";

/** The number of batches validated, and of batches finalized, side by side. At their end, more would hold too much memory. */
const SIDE_BY_SIDE = { ofAnyProject: 3, most: 6 };

export interface LoopsOptions {
  readonly clock: Clock;
  readonly log: Log;
}

export class Loops<Name extends string> {
  readonly #options: LoopsOptions;
  readonly #nudges = new Map<Name, Nudge>();
  readonly #drain = new AbortController();
  readonly #loops: Promise<void>[] = [];
  readonly #sideBySides: SideBySide[] = [];

  constructor(options: LoopsOptions) {
    this.#options = options;
  }

  run(name: Name, everyMs: number, runOnce: RunOnce): void {
    const nudge = this.nudgeOf(name);
    const drain = this.#drain.signal;
    this.#loops.push(loop({ ...this.#options, name, everyMs, nudge, drain, runOnce }));
  }

  /** Claims batches and works on some of them at the same time. */
  runSideBySide(name: Name, everyMs: number, claim: SideBySideOptions["claim"]): void {
    const { log } = this.#options;
    const onFailed = (err: unknown) => log.error({ loop: name, err }, "loop.pass_failed");
    const nudge = this.nudgeOf(name);
    const works = new SideBySide({ ...SIDE_BY_SIDE, claim, nudge, onFailed });
    this.#sideBySides.push(works);
    this.run(name, everyMs, () => works.startNext());
  }

  /** Has each of these loops run its next pass at once. */
  nudge(...names: readonly Name[]): void {
    for (const name of names) this.nudgeOf(name).now();
  }

  /** Returns the signal that wakes this loop, which may start later. */
  nudgeOf(name: Name): Nudge {
    const known = this.#nudges.get(name);
    if (known !== undefined) return known;
    const nudge = new Nudge();
    this.#nudges.set(name, nudge);
    return nudge;
  }

  get isDraining(): boolean {
    return this.#drain.signal.aborted;
  }

  /** Starts no pass any more. */
  drain(): void {
    this.#drain.abort();
  }

  /** Resolves when the loops and what they started have ended, after a drain. */
  async settled(): Promise<void> {
    await Promise.all(this.#loops);
    await Promise.all(this.#sideBySides.map((each) => each.settled()));
  }
}
