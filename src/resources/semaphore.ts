/** Limits how many things happen at the same time. The others wait in the order in which they came. */
export class Semaphore {
  #freeCount: number;
  readonly #waiting: (() => void)[] = [];

  constructor(count: number) {
    this.#freeCount = count;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#freeCount > 0) this.#freeCount--;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#freeCount++;
      else next();
    }
  }
}
