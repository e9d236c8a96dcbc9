/** Limits how many things happen at the same time. The projects for which the others wait take turns. */
import { ClientTurns } from "./client-turns.ts";

export class Semaphore {
  #freeCount: number;
  readonly #waiting = new ClientTurns<() => void>();

  constructor(count: number) {
    this.#freeCount = count;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#freeCount > 0) this.#freeCount--;
    else await new Promise<void>((resolve) => this.#waiting.add(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.next();
      if (next === null) this.#freeCount++;
      else next[0]();
    }
  }
}
