/**
 * A queue in front of a few servers, first come first served. A request waits while all servers are busy, and is
 * refused while the queue is full. The station keeps the integrals by which a dispatcher is judged.
 */
import { type Clock, sleep } from "../../src/clock.ts";

export interface StationOptions {
  readonly clock: Clock;
  readonly capacity: number;
  readonly queueLimit: number;
}

/** Sums since the beginning. The difference of two totals covers the time between them. */
export interface StationTotals {
  readonly atMs: number;
  readonly served: number;
  /** The busy time of all servers. Requests beyond a lowered capacity do not count. */
  readonly busyMs: number;
  /** The available time of all servers. */
  readonly capacityMs: number;
  /** The time of all requests in the station, waiting or served. */
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

  /** Changes the capacity. Requests in service continue. */
  setCapacity(capacity: number): void {
    this.#account();
    this.#capacity = capacity;
    this.#callNext();
  }

  /** Opens or closes the station. A closed one has no capacity. */
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

  /**
   * Resolves when a request has been served. `serviceMs` is called when the service begins. The visit ends early when
   * `gone` aborts.
   */
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

  /** Resolves to false when `gone` aborts first. */
  async #turn(gone: AbortSignal): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const call = () => resolve(true);
    const leave = () => {
      const place = this.#queue.indexOf(call);
      // The request has just been called, and will release its server in a moment.
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

/** Returns the share of the time between two moments for which the servers were busy. */
export const utilisation = (from: StationTotals, to: StationTotals): number =>
  (to.busyMs - from.busyMs) / (to.capacityMs - from.capacityMs);

/** Returns the mean number of requests in the station between two moments, waiting or served. */
export const meanPresent = (from: StationTotals, to: StationTotals): number =>
  (to.presentMs - from.presentMs) / (to.atMs - from.atMs);
