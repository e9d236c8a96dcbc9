/**
 * A queue in front of a few servers: whoever finds them all busy waits, first come first served, and whoever
 * finds the queue full is turned away. Keeps the integrals by which a dispatcher is judged.
 */
import { type Clock, sleep } from "../../src/clock.ts";

export interface StationOptions {
  readonly clock: Clock;
  readonly capacity: number;
  readonly queueLimit: number;
}

/** Sums since the beginning. The difference of two tells what was between them. */
export interface StationTotals {
  readonly atMs: number;
  readonly served: number;
  /** Time that the servers were busy, added up; what a lowered capacity still has to finish does not count. */
  readonly busyMs: number;
  /** Time that they could have been. */
  readonly capacityMs: number;
  /** Time that requests spent here, waiting or served, added up. */
  readonly presentMs: number;
}

type Visit = "served" | "turned_away" | "gone";

export class Station {
  readonly #clock: Clock;
  readonly #queueLimit: number;
  readonly #queue: (() => void)[] = [];
  #capacity: number;
  #isOpen = true;
  #busy = 0;
  #totals = { atMs: 0, served: 0, busyMs: 0, capacityMs: 0, presentMs: 0 };
  maxQueue = 0;
  maxPresent = 0;

  constructor({ clock, capacity, queueLimit }: StationOptions) {
    this.#clock = clock;
    this.#capacity = capacity;
    this.#queueLimit = queueLimit;
    this.#totals.atMs = clock.nowMs();
  }

  /** What is being served goes on, whatever the new capacity is. */
  setCapacity(capacity: number): void {
    this.#account();
    this.#capacity = capacity;
    this.#callNext();
  }

  /** A closed station has no capacity that anybody could use. */
  setOpen(state: "open" | "closed"): void {
    this.#account();
    this.#isOpen = state === "open";
  }

  get capacity(): number {
    return this.#capacity;
  }

  get present(): number {
    return this.#busy + this.#queue.length;
  }

  totals(): StationTotals {
    this.#account();
    return { ...this.#totals };
  }

  /** `serviceMs` is asked when the turn comes. Ends early when `gone` aborts. */
  async visit(serviceMs: () => number, gone: AbortSignal): Promise<Visit> {
    if (gone.aborted) return "gone";
    this.#account();
    if (this.#busy < this.#capacity) {
      this.#busy++;
    } else {
      if (this.#queue.length >= this.#queueLimit) return "turned_away";
      if (!(await this.#turn(gone))) return "gone";
    }
    this.maxPresent = Math.max(this.maxPresent, this.present);
    await sleep(this.#clock, serviceMs(), gone);
    this.#account();
    this.#busy--;
    if (!gone.aborted) this.#totals.served++;
    this.#callNext();
    return gone.aborted ? "gone" : "served";
  }

  /** False when `gone` aborts first. */
  async #turn(gone: AbortSignal): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const call = () => resolve(true);
    const leave = () => {
      const place = this.#queue.indexOf(call);
      // It has just been called: its server is given back in a moment.
      if (place === -1) return;
      this.#account();
      this.#queue.splice(place, 1);
      resolve(false);
    };
    this.#queue.push(call);
    this.maxQueue = Math.max(this.maxQueue, this.#queue.length);
    this.maxPresent = Math.max(this.maxPresent, this.present);
    gone.addEventListener("abort", leave, { once: true });
    const isCalled = await promise;
    gone.removeEventListener("abort", leave);
    return isCalled;
  }

  #callNext(): void {
    while (this.#busy < this.#capacity) {
      const call = this.#queue.shift();
      if (call === undefined) return;
      this.#busy++;
      call();
    }
  }

  #account(): void {
    const nowMs = this.#clock.nowMs();
    const tookMs = nowMs - this.#totals.atMs;
    this.#totals.atMs = nowMs;
    if (tookMs === 0) return;
    this.#totals.busyMs += Math.min(this.#busy, this.#capacity) * tookMs;
    this.#totals.capacityMs += this.#isOpen ? this.#capacity * tookMs : 0;
    this.#totals.presentMs += this.present * tookMs;
  }
}

/** The share of their time, between two moments, that the servers were busy. */
export const utilisation = (from: StationTotals, to: StationTotals): number =>
  (to.busyMs - from.busyMs) / (to.capacityMs - from.capacityMs);

/** How many requests were there between two moments, waiting or served, on average. */
export const meanPresent = (from: StationTotals, to: StationTotals): number =>
  (to.presentMs - from.presentMs) / (to.atMs - from.atMs);
