import { type Interruptible, offAbort, onAbort } from "./abort-listeners.ts";

/** How many lines have been taken on, of how many that may be; who finds no place waits for one. */
export class Admission {
  #limit = 0;
  #takenCount = 0;
  readonly #waiting = new Set<Waiter>();

  get free(): number {
    return Math.max(0, this.#limit - this.#takenCount);
  }

  setLimit(limit: number): void {
    this.#limit = limit;
    this.#handOn();
  }

  /** True once there is a place, at once if there is one; false when `stop` aborts first. */
  admit(stop: AbortSignal): boolean | Promise<boolean> {
    if (stop.aborted) return false;
    if (this.#takenCount < this.#limit) {
      this.#takenCount++;
      return true;
    }
    return new Promise((resolve) => {
      const waiter = new Waiter(stop, (isAdmitted) => {
        this.#waiting.delete(waiter);
        resolve(isAdmitted);
      });
      this.#waiting.add(waiter);
    });
  }

  dismiss(): void {
    if (this.#takenCount === 0) throw new Error("a line was dismissed that had not been admitted");
    this.#takenCount--;
    this.#handOn();
  }

  #handOn(): void {
    for (const waiter of this.#waiting) {
      if (this.#takenCount >= this.#limit) return;
      this.#takenCount++;
      waiter.admit();
    }
  }
}

class Waiter implements Interruptible {
  readonly #stop: AbortSignal;
  readonly #resolve: (isAdmitted: boolean) => void;

  constructor(stop: AbortSignal, resolve: (isAdmitted: boolean) => void) {
    this.#stop = stop;
    this.#resolve = resolve;
    onAbort(stop, this);
  }

  admit(): void {
    offAbort(this.#stop, this);
    this.#resolve(true);
  }

  interrupt(): void {
    this.#resolve(false);
  }
}
