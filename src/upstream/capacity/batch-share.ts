/**
 * Decides whether a line of a batch goes before an interactive request while both wait for the same target.
 *
 * Interactive requests go first, but clients that send them without end must not stop the batches of other clients.
 * Lines therefore keep a share of the resource that is short at the moment:
 * - *Slots*, when the next request takes the last free one. Lines get it while they hold less than their share, however
 *   long the answers of either take. A share of less than one slot, or of a slot and a half, is kept by credit.
 * - *The rate limit*, when slots are left over. Each interactive request that goes out ahead of a line earns credit in
 *   proportion to what it costs, and a line goes once it is paid for. This is deficit round robin (M. Shreedhar,
 *   G. Varghese, SIGCOMM 1995) with two queues.
 *
 * Only requests that wait count, so neither lane leaves anything unused that the other could take.
 */
/** Credit is a sum of fractions: what is missing by less than this part is an error of rounding. */
const ROUNDING = 1e-9;

export interface SlotUse {
  readonly limit: number;
  readonly totalInFlight: number;
  readonly batchInFlight: number;
}

export class BatchShare {
  /** The share of lines, from 0 (lines go last) to 1 (lines go first). */
  #share = 0;
  #credit = 0;

  set(share: number): void {
    this.#share = share;
  }

  /** Returns whether the line that waits first, at this cost, is the next to go. */
  isDue(cost: number, { limit, totalInFlight, batchInFlight }: SlotUse): boolean {
    if (totalInFlight + 1 >= limit) {
      const slots = this.#share * limit;
      if (batchInFlight + 1 <= slots) return true;
      if (batchInFlight >= slots) return false;
    }
    return this.#credit >= this.#priceOf(cost) * (1 - ROUNDING);
  }

  /** Credits an interactive request that goes out while a line waits. Credit is never more than that line costs. */
  earn(cost: number, lineCost: number): void {
    this.#credit = Math.min(this.#credit + this.#share * cost, lineCost);
  }

  /** Charges a line that goes out in its turn. A line that goes because no other request waits needs no credit. */
  spend(cost: number): void {
    this.#credit = Math.max(0, this.#credit - this.#priceOf(cost));
  }

  /** Returns the cost of a line without the share that the line earns itself. */
  #priceOf(cost: number): number {
    return (1 - this.#share) * cost;
  }
}
