/**
 * The requests of one batch that wait for a slot, or all interactive ones, in the order in which they came.
 *
 * Requests that avoid the same targets wait in one list. The others of a list may go nowhere that its first may not, so
 * only the first of each list is looked at. A list is linked, because a request may leave from its middle.
 */
import type { Interruptible } from "./exchange/abort-listeners.ts";
import type { Eligible } from "./load-balancer.ts";
import type { Slot, SlotRequest } from "./slot.ts";

interface WaiterOptions<Target extends Eligible> {
  readonly signal: AbortSignal;
  readonly sinceMs: number;
  readonly resolve: (slot: Slot<Target> | null) => void;
  readonly onAbort: (waiter: Waiter<Target>) => void;
}

/** A request that waits. */
export class Waiter<Target extends Eligible> implements Interruptible {
  readonly request: SlotRequest<Target>;
  readonly signal: AbortSignal;
  readonly sinceMs: number;
  readonly resolve: (slot: Slot<Target> | null) => void;
  readonly #onAbort: (waiter: Waiter<Target>) => void;
  /** Lower came first. */
  order = 0;
  list: WaitList<Target> | null = null;
  previous: Waiter<Target> | null = null;
  next: Waiter<Target> | null = null;

  constructor(request: SlotRequest<Target>, options: WaiterOptions<Target>) {
    this.request = request;
    this.signal = options.signal;
    this.sinceMs = options.sinceMs;
    this.resolve = options.resolve;
    this.#onAbort = options.onAbort;
  }

  interrupt(): void {
    this.#onAbort(this);
  }
}

class WaitList<Target extends Eligible> {
  first: Waiter<Target> | null = null;
  #last: Waiter<Target> | null = null;

  /** At the end, but before those with a higher rank: only new lines have one, and of these there are few. */
  add(waiter: Waiter<Target>): void {
    let previous = this.#last;
    while (previous !== null && previous.request.rank > waiter.request.rank) {
      previous = previous.previous;
    }
    const next = previous === null ? this.first : previous.next;
    waiter.list = this;
    waiter.previous = previous;
    waiter.next = next;
    if (previous === null) this.first = waiter;
    else previous.next = waiter;
    if (next === null) this.#last = waiter;
    else next.previous = waiter;
  }

  /** The waiter keeps its own links, so a loop that is at this waiter finds the next one. */
  remove(waiter: Waiter<Target>): void {
    if (waiter.previous === null) this.first = waiter.next;
    else waiter.previous.next = waiter.next;
    if (waiter.next === null) this.#last = waiter.previous;
    else waiter.next.previous = waiter.previous;
  }
}

export class WaitGroup<Target extends Eligible> {
  /** Those that avoid no target. */
  readonly #free = new WaitList<Target>();
  /** The others, by the targets that they avoid. */
  readonly #avoiding = new Map<string, WaitList<Target>>();

  get isEmpty(): boolean {
    return this.#free.first === null && this.#avoiding.size === 0;
  }

  /** Its position among `targets` names a target. */
  add(waiter: Waiter<Target>, targets: readonly Target[]): void {
    const { avoided } = waiter.request;
    if (avoided.length === 0) {
      this.#free.add(waiter);
      return;
    }
    const key = avoided.map((target) => targets.indexOf(target)).join();
    const list = this.#avoiding.get(key) ?? new WaitList();
    this.#avoiding.set(key, list);
    list.add(waiter);
  }

  remove(waiter: Waiter<Target>): void {
    waiter.list?.remove(waiter);
    if (waiter.list === this.#free || waiter.list?.first !== null) return;
    for (const [key, list] of this.#avoiding) {
      if (list === waiter.list) this.#avoiding.delete(key);
    }
  }

  /** The one that has waited longest, of the first ones of each list that may go. */
  first(mayGo: (waiter: Waiter<Target>) => boolean): Waiter<Target> | null {
    const { first } = this.#free;
    let longest = first !== null && mayGo(first) ? first : null;
    if (this.#avoiding.size === 0) return longest;
    for (const { first } of this.#avoiding.values()) {
      const isEarlier = first !== null && (longest === null || first.order < longest.order);
      if (isEarlier && mayGo(first)) longest = first;
    }
    return longest;
  }

  firsts(): (Waiter<Target> | null)[] {
    return [this.#free.first, ...[...this.#avoiding.values()].map(({ first }) => first)];
  }
}
