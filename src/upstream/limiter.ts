/**
 * How many requests a target may have in flight, and who is next.
 *
 * A waiter stands in the list of every target that would do and takes the first slot that frees. One
 * invariant carries it all: **while a target has a free slot, nobody waits for it**. Whatever makes a slot
 * free (a release, a higher limit) hands it on in the same step, first come first served; so taking a free
 * slot never overtakes anybody, and no wake-up can be lost.
 */
import { type Interruptible, unwatch, watch } from "./watch.ts";

/** Whatever has a limit: here, a target. */
export interface Limited {
  readonly limiter: Limiter;
}

/** The right to one request in flight at `target`. */
export class Slot<Target extends Limited> {
  readonly target: Target;
  #isHeld = true;

  constructor(target: Target) {
    this.target = target;
  }

  /** Gives the slot back; once, however often it is called. */
  release(): void {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    this.target.limiter.giveBack();
  }
}

/** A place in the list of one limiter: a waiter, and which of its targets the list belongs to. */
interface Place {
  readonly waiter: { grant(target: number): void };
  readonly target: number;
  previous: Place | null;
  next: Place | null;
}

export class Limiter {
  #limit: number;
  #inFlight = 0;
  #first: Place | null = null;
  #last: Place | null = null;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get limit(): number {
    return this.#limit;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  get free(): number {
    return Math.max(0, this.#limit - this.#inFlight);
  }

  /** A lower limit takes no slot away: it is reached as slots come back. */
  setLimit(limit: number): void {
    this.#limit = limit;
    this.#handOn();
  }

  /** Counts a slot as taken; only while one is free. */
  take(): void {
    this.#inFlight++;
  }

  /** Called by {@link Slot.release}, which sees to it that it happens once. */
  giveBack(): void {
    this.#inFlight--;
    this.#handOn();
  }

  join(waiter: Place["waiter"], target: number): Place {
    const place: Place = { waiter, target, previous: this.#last, next: null };
    if (this.#last === null) this.#first = place;
    else this.#last.next = place;
    this.#last = place;
    return place;
  }

  leave(place: Place): void {
    if (place.previous === null) this.#first = place.next;
    else place.previous.next = place.next;
    if (place.next === null) this.#last = place.previous;
    else place.next.previous = place.previous;
  }

  #handOn(): void {
    while (this.#first !== null && this.#inFlight < this.#limit) {
      this.#inFlight++;
      this.#first.waiter.grant(this.#first.target);
    }
  }
}

class Waiter<Target extends Limited> implements Interruptible {
  readonly #targets: readonly Target[];
  readonly #places: Place[] = [];
  readonly #signal: AbortSignal;
  readonly #resolve: (slot: Slot<Target> | null) => void;

  constructor(
    targets: readonly Target[],
    signal: AbortSignal,
    resolve: (slot: Slot<Target> | null) => void,
  ) {
    this.#targets = targets;
    this.#signal = signal;
    this.#resolve = resolve;
    targets.forEach((target, i) => {
      this.#places.push(target.limiter.join(this, i));
    });
    watch(signal, this);
  }

  grant(index: number): void {
    this.#leaveAll();
    unwatch(this.#signal, this);
    this.#resolve(new Slot(this.#targets[index] as Target));
  }

  interrupt(): void {
    this.#leaveAll();
    this.#resolve(null);
  }

  #leaveAll(): void {
    for (const place of this.#places) this.#targets[place.target]?.limiter.leave(place);
  }
}

/**
 * A slot of the least loaded target that has one free, at once; otherwise a promise of the first slot that
 * frees at any of them. Null once the signal has aborted.
 */
export function acquireSlot<Target extends Limited>(
  targets: readonly Target[],
  signal: AbortSignal,
): Slot<Target> | null | Promise<Slot<Target> | null> {
  if (signal.aborted) return null;
  const target = leastLoaded(targets);
  if (target === null) return new Promise((resolve) => new Waiter(targets, signal, resolve));
  target.limiter.take();
  return new Slot(target);
}

function leastLoaded<Target extends Limited>(targets: readonly Target[]): Target | null {
  let best: Target | null = null;
  let bestLoad = 1;
  for (const target of targets) {
    const load = target.limiter.inFlight / target.limiter.limit;
    if (load < bestLoad) {
      best = target;
      bestLoad = load;
    }
  }
  return best;
}
