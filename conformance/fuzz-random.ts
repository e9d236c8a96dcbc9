/** Rolls seeded dice, which fall the same way for the same seed, and the values that are often drawn with them. */

/**
 * Returns the dice of one request. They do not depend on earlier requests, so that any request can be repeated alone.
 */
export class Dice {
  #state: number;

  constructor(seed: number, index: number) {
    this.#state = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(index + 1, 0x85ebca6b)) >>> 0;
  }

  /** Returns numbers from 0 up to 1 (mulberry32). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  below = (bound: number): number => Math.floor(this.next() * bound);

  chance = (probability: number): boolean => this.next() < probability;

  pick<T>(choices: readonly T[]): T {
    return choices[this.below(choices.length)] as T;
  }

  /** Draws a number between `min` and `max`, small ones far more often. */
  size = (min: number, max: number): number => min + Math.floor((max - min) * this.next() ** 8);

  bytes(length: number): Buffer {
    return Buffer.from(Array.from({ length }, () => this.below(256)));
  }
}
