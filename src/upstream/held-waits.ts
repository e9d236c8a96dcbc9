/**
 * The lines of a route that wait for the end of a hold (`holds.ts`), or for their turn to probe. They wait beside the queue
 * for slots, so that they hold up no line of another kind.
 */
import { Sums } from "../batch/sums.ts";
import type { Clock } from "../clock.ts";
import { offAbort, onAbort } from "./exchange/abort-listeners.ts";
import { keyOf } from "./kind-map.ts";
import type { RequestKind } from "./request.ts";

export class HeldWaits {
  readonly #clock: Clock;
  /** Each ends one wait. */
  readonly #ends = new Set<() => void>();
  readonly #lineCounts = new Sums<string>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Counts lines, but not the chunks that wait with all their lines. */
  lineCountOf(kind: RequestKind): number {
    return this.#lineCounts.total === 0 ? 0 : this.#lineCounts.of(keyOf(kind));
  }

  async waitAsLine(kind: RequestKind, untilMs: number, stop: AbortSignal): Promise<void> {
    const key = keyOf(kind);
    this.#lineCounts.add(key, 1);
    await this.wait(untilMs, stop);
    this.#lineCounts.add(key, -1);
  }

  /** Resolves when so much time has elapsed, when {@link wake} is called, or when `stop` aborts. */
  async wait(untilMs: number, stop: AbortSignal): Promise<void> {
    if (stop.aborted) return;
    const { promise, resolve: end } = Promise.withResolvers<void>();
    const interruptible = { interrupt: end };
    onAbort(stop, interruptible);
    this.#ends.add(end);
    const cancel = this.#clock.after(Math.max(1, untilMs - this.#clock.elapsedMs()), end);
    await promise;
    cancel();
    this.#ends.delete(end);
    offAbort(stop, interruptible);
  }

  wake(): void {
    for (const end of [...this.#ends]) end();
  }
}
