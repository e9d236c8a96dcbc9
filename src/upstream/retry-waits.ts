/**
 * Counts the lines of a route that wait for their next attempt, and holds new lines back while there are too many.
 *
 * A line that waits holds no slot, so another one may take its place. A full target would otherwise refuse one line
 * after the other without end. New lines are therefore held back while too many lines wait that were refused since the
 * last answer of another kind: the targets are full or down, and those lines come back by themselves. A few lines that
 * are refused for ever must not hold the others back, so one more new line is tried after some refusals.
 */
import type { Outcome } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import { HeldWaits } from "./held-waits.ts";
import type { Tally } from "./retry.ts";

const WAITING_PER_SLOT = 2;
/** The number of repeated refusals after which one more new line is tried. */
const REFUSALS_PER_TRIAL = 3;

interface RetryWaitsOptions {
  readonly clock: Clock;
  readonly slotCount: () => number;
  /** The callback for room: new lines may go again. */
  readonly onRoom: () => void;
}

export class RetryWaits {
  readonly #options: RetryWaitsOptions;
  readonly #waits: HeldWaits;
  #count = 0;
  /** The number of them that hold no new line back. Each refusal adds a fraction. */
  #uncounted = 0;

  constructor(options: RetryWaitsOptions) {
    this.#options = options;
    this.#waits = new HeldWaits(options.clock);
  }

  /** Whether no new line is to go out. */
  get holdsBack(): boolean {
    if (this.#count === 0) return false;
    const counted = this.#count - Math.min(this.#count, Math.floor(this.#uncounted));
    return counted > 0 && counted >= WAITING_PER_SLOT * this.#options.slotCount();
  }

  async wait(untilMs: number, stop: AbortSignal): Promise<void> {
    if (untilMs <= this.#options.clock.elapsedMs()) return;
    this.#count++;
    await this.#waits.wait(untilMs, stop);
    this.#change(() => this.#count--);
  }

  /** Ends all waits. */
  wake(): void {
    this.#waits.wake();
  }

  /** Learns from the outcome of an attempt. `tally` counts the attempts before it. */
  note({ kind }: Outcome, { overloads }: Tally): void {
    const isRefusal = kind === "overloaded" || kind === "unreachable" || kind === "refused";
    if (isRefusal && overloads > 0) this.#change(() => (this.#uncounted += 1 / REFUSALS_PER_TRIAL));
    else if (!isRefusal && kind !== "interrupted" && this.#uncounted !== this.#count) {
      this.#change(() => (this.#uncounted = this.#count));
    }
  }

  #change(change: () => void): void {
    const heldBack = this.holdsBack;
    change();
    if (heldBack && !this.holdsBack) this.#options.onRoom();
  }
}
