import { type Clock, sleep } from "../clock.ts";
import { offAbort, onAbort } from "./exchange/abort-listeners.ts";
import { keyOf } from "./holds.ts";
import type { RequestKind } from "./upstream.ts";

/** A reason must be given, because each abort without one would make an error with a stack. */
const WOKEN = "woken";

/** Lines of a route that wait for the end of a hold (`holds.ts`), or for their turn to probe. */
export class HeldWaits {
  readonly #clock: Clock;
  readonly #waiting = new Set<AbortController>();
  readonly #lineCounts = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Counts lines, but not the chunks that wait with all their lines. */
  lineCountOf(kind: RequestKind): number {
    return this.#lineCounts.size === 0 ? 0 : (this.#lineCounts.get(keyOf(kind)) ?? 0);
  }

  async waitAsLine(kind: RequestKind, untilMs: number, stop: AbortSignal): Promise<void> {
    const key = keyOf(kind);
    this.#lineCounts.set(key, (this.#lineCounts.get(key) ?? 0) + 1);
    await this.wait(untilMs, stop);
    const left = (this.#lineCounts.get(key) ?? 1) - 1;
    if (left > 0) this.#lineCounts.set(key, left);
    else this.#lineCounts.delete(key);
  }

  /** Resolves when so much time has elapsed, when {@link wake} is called, or when `stop` aborts. */
  async wait(untilMs: number, stop: AbortSignal): Promise<void> {
    if (stop.aborted) return;
    const waiting = new AbortController();
    const interruptible = { interrupt: () => waiting.abort(WOKEN) };
    onAbort(stop, interruptible);
    this.#waiting.add(waiting);
    const waitMs = Math.max(1, untilMs - this.#clock.elapsedMs());
    await sleep(this.#clock, waitMs, waiting.signal);
    this.#waiting.delete(waiting);
    offAbort(stop, interruptible);
  }

  wake(): void {
    for (const waiting of [...this.#waiting]) waiting.abort(WOKEN);
  }
}
