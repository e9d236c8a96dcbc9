/**
 * Starts reads before their results are needed. A storage in the network takes tens of milliseconds for each read, however
 * few bytes it has, and a merge that reads one segment after another would mostly wait.
 *
 * Reads start in the order of the things. The results that wait to be taken are limited in number and in bytes. A
 * thing may be taken at any time: a read that has not started yet starts at once, without regard to the limits.
 */
interface AheadLimits {
  /** The most reads that are started and not taken; 0 starts none ahead. */
  readonly maxCount: number;
  readonly maxBytes: number;
}

interface Reading<T, R> {
  readonly limits: AheadLimits;
  readonly bytesOf: (thing: T) => number;
  readonly read: (thing: T) => Promise<R>;
}

export class ReadAhead<T, R> {
  readonly #things: readonly T[];
  readonly #reading: Reading<T, R>;
  /** The reads that are started and not taken. */
  readonly #ahead = new Map<T, Promise<R>>();
  /** The things that were taken before their turn. */
  readonly #taken = new Set<T>();
  #aheadBytes = 0;
  /** The position of the next thing that may be read ahead. */
  #next = 0;

  constructor(things: readonly T[], reading: Reading<T, R>) {
    this.#things = things;
    this.#reading = reading;
  }

  /** Resolves to the result for one of the things. Each may be taken once. */
  take(thing: T): Promise<R> {
    const started = this.#ahead.get(thing);
    if (started === undefined) this.#taken.add(thing);
    else this.#aheadBytes -= this.#reading.bytesOf(thing);
    this.#ahead.delete(thing);
    const result = started ?? this.#reading.read(thing);
    this.#startNext();
    return result;
  }

  #startNext(): void {
    const { limits, bytesOf, read } = this.#reading;
    for (; this.#ahead.size < limits.maxCount; this.#next++) {
      const thing = this.#things[this.#next];
      if (thing === undefined) return;
      if (this.#taken.delete(thing)) continue;
      const bytes = bytesOf(thing);
      if (this.#aheadBytes + bytes > limits.maxBytes) return;
      const result = read(thing);
      // The failure surfaces where the result is taken. A merge that ends early takes no more results.
      result.catch(() => {});
      this.#ahead.set(thing, result);
      this.#aheadBytes += bytes;
    }
  }
}
