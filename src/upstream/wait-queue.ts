import type { Need } from "./reservation.ts";

/** What a waiter does when its target is shut for a while: another target may do by now. */
export type IfShut = "wait" | "leave";

/** A place in a line: who waits, and which of the waiter's targets the line belongs to. */
export interface Place {
  readonly waiter: SlotWaiter;
  readonly target: number;
  previous: Place | null;
  next: Place | null;
}

export interface SlotWaiter {
  readonly need: Need;
  readonly ifShut: IfShut;
  grant(target: number): void;
  /** It is to leave the line of this target, if it still stands there. */
  turnAway(target: number): void;
}

/** Those who wait for one target in one lane. Leaving is as cheap as joining: a waiter stands in several lines. */
export class WaitingLine {
  first: Place | null = null;
  #last: Place | null = null;
  count = 0;

  join(waiter: SlotWaiter, target: number): Place {
    const place: Place = { waiter, target, previous: this.#last, next: null };
    if (this.#last === null) this.first = place;
    else this.#last.next = place;
    this.#last = place;
    this.count++;
    return place;
  }

  leave(place: Place): void {
    if (place.previous === null) this.first = place.next;
    else place.previous.next = place.next;
    if (place.next === null) this.#last = place.previous;
    else place.next.previous = place.previous;
    this.count--;
  }
}
