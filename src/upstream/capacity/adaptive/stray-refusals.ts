/**
 * Measures the part of the requests that is refused however few are in flight: a balancer has a sick server, or a gateway has
 * moods. A full target is told from it at half the limit, where it refuses hardly anything.
 */

/** The requests of one measurement. */
const COUNT = 200;
/** A target that refuses more is full, or cannot work. */
const MAX_PART = 0.1;

export class StrayRefusals {
  #part = 0;
  /** The highest limit at which the target refused too many. */
  #most = 0;
  #count = 0;
  #refused = 0;

  get part(): number {
    return this.#part;
  }

  /** Notes that the target refuses too many at this limit. */
  limitFell(from: number): void {
    this.#most = Math.max(this.#most, from);
  }

  /** Counts a request at a limit that has been held. */
  note(isRefused: boolean, limit: number): void {
    this.#count++;
    if (isRefused) this.#refused++;
    if (this.#count < COUNT) return;
    const part = this.#refused / this.#count;
    if (limit <= this.#most / 2) this.#part = part <= MAX_PART ? part : 0;
    // More requests in flight can only add refusals to the stray ones.
    else this.#part = Math.min(part, this.#part);
    this.#count = 0;
    this.#refused = 0;
  }
}
