/**
 * Serves many short waits on one long-lived signal through a single listener.
 *
 * An AbortSignal walks the list of its listeners to add one and to remove one. With thousands of lines in flight on
 * the signal of one run, that walk would cost more than the requests.
 */

export interface Interruptible {
  /** Ends the wait. It is called once, when the signal aborts. */
  interrupt(): void;
}

class AbortListeners {
  readonly #signal: AbortSignal;
  readonly #waits = new Set<Interruptible>();

  constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  add(wait: Interruptible): void {
    if (this.#waits.size === 0) this.#signal.addEventListener("abort", this.#interruptAll);
    this.#waits.add(wait);
  }

  delete(wait: Interruptible): void {
    if (this.#waits.delete(wait) && this.#waits.size === 0) {
      this.#signal.removeEventListener("abort", this.#interruptAll);
    }
  }

  readonly #interruptAll = () => {
    for (const wait of [...this.#waits]) {
      this.delete(wait);
      wait.interrupt();
    }
  };
}

const listenersOf = new WeakMap<AbortSignal, AbortListeners>();

/** Interrupts the wait when the signal aborts. The caller must have seen that it has not aborted yet. */
export function onAbort(signal: AbortSignal, wait: Interruptible): void {
  let existing = listenersOf.get(signal);
  if (existing === undefined) {
    existing = new AbortListeners(signal);
    listenersOf.set(signal, existing);
  }
  existing.add(wait);
}

export function offAbort(signal: AbortSignal, wait: Interruptible): void {
  listenersOf.get(signal)?.delete(wait);
}
