/**
 * The requests of one batch that wait for a slot, or the interactive ones of one project, in the order in which they came.
 *
 * Requests that avoid the same targets wait in one list. The first of a list may go wherever the others may, so only
 * the first of each list is examined. A list is linked, because a request may be removed from its middle.
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
  /** The order of arrival: the lowest came first. */
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

  /** Adds a waiter at the end, but before higher ranks. Only new lines have a rank, and there are few of them. */
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

  /** Removes a waiter. It keeps its own links, so a loop that is at this waiter finds the next one. */
  remove(waiter: Waiter<Target>): void {
    if (waiter.previous === null) this.first = waiter.next;
    else waiter.previous.next = waiter.next;
    if (waiter.next === null) this.#last = waiter.previous;
    else waiter.next.previous = waiter.previous;
  }
}

export class WaitGroup<Target extends Eligible> {
  /** The waiters that avoid no target. */
  readonly #free = new WaitList<Target>();
  /** The other waiters, by the targets that they avoid. */
  readonly #avoiding = new Map<string, WaitList<Target>>();

  get isEmpty(): boolean {
    return this.#free.first === null && this.#avoiding.size === 0;
  }

  /** Adds a waiter. A target is named by its position among `targets`. */
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

  /** Returns the waiter that has waited longest, among the first of each list that may go. */
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
