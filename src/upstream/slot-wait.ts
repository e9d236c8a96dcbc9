import { type Interruptible, offAbort, onAbort } from "./abort-listeners.ts";
import { type Limited, Slot } from "./limiter.ts";
import type { Need } from "./reservation.ts";
import type { IfShut, Place, SlotWaiter } from "./wait-queue.ts";

export interface SlotWish {
  readonly need: Need;
  /** Ends the wait. */
  readonly signal: AbortSignal;
  /** Left out: it waits. */
  readonly ifShut?: IfShut;
}

/** Stands in the line of every target that would do, until the first of them gives a slot. */
class Waiter<Target extends Limited> implements SlotWaiter, Interruptible {
  readonly need: Need;
  readonly ifShut: IfShut;
  readonly #targets: readonly Target[];
  /** Its place in the line of each target; null where it was turned away, or stands no more. */
  readonly #places: (Place | null)[];
  readonly #signal: AbortSignal;
  readonly #resolve: (slot: Slot<Target> | null) => void;
  #isOver = false;

  constructor(
    targets: readonly Target[],
    { need, signal, ifShut = "wait" }: SlotWish,
    resolve: (slot: Slot<Target> | null) => void,
  ) {
    this.need = need;
    this.ifShut = ifShut;
    this.#targets = targets;
    this.#places = targets.map(() => null);
    this.#signal = signal;
    this.#resolve = resolve;
  }

  /** It may be granted a slot before it stands in the last line. */
  join(): void {
    onAbort(this.#signal, this);
    for (let i = 0; i < this.#targets.length && !this.#isOver; i++) {
      const place = this.#targets[i]?.limiter.join(this, i) ?? null;
      if (!this.#isOver) this.#places[i] = place;
    }
    if (this.#places.every((place) => place === null)) this.#end(null);
  }

  grant(index: number): void {
    this.#places[index] = null;
    this.#end(new Slot(this.#targets[index] as Target, this.need));
  }

  turnAway(index: number): void {
    const place = this.#places[index] ?? null;
    if (place === null) return;
    this.#places[index] = null;
    this.#targets[index]?.limiter.leave(place);
    if (this.#places.every((place) => place === null)) this.#end(null);
  }

  interrupt(): void {
    this.#end(null);
  }

  #end(slot: Slot<Target> | null): void {
    if (this.#isOver) return;
    this.#isOver = true;
    offAbort(this.#signal, this);
    for (const [i, place] of this.#places.entries()) {
      this.#places[i] = null;
      if (place !== null) this.#targets[i]?.limiter.leave(place);
    }
    this.#resolve(slot);
  }
}

/** The first slot that any of the targets gives; null once the signal has aborted, or when all turn it away. */
export function waitForSlot<Target extends Limited>(
  targets: readonly Target[],
  wish: SlotWish,
): Promise<Slot<Target> | null> {
  return new Promise((resolve) => new Waiter(targets, wish, resolve).join());
}
