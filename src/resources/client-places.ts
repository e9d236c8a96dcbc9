/** Limits how much of one kind is done for clients at the same time. The projects that wait take turns. */
import { ClientTurns } from "./client-turns.ts";

export class ClientPlaces {
  #freeCount: number;
  readonly #waiting = new ClientTurns<() => void>();

  constructor(count: number) {
    this.#freeCount = count;
  }

  /** Resolves when a place is free. The caller must dispose of it. */
  async take(): Promise<Disposable> {
    if (this.#freeCount > 0) this.#freeCount--;
    else await new Promise<void>((resolve) => this.#waiting.add(resolve));
    return { [Symbol.dispose]: () => this.#release() };
  }

  #release(): void {
    const next = this.#waiting.next();
    if (next === null) this.#freeCount++;
    else next[0]();
  }
}
