/**
 * Serves many short waits on one long-lived signal through a single listener.
 *
 * An AbortSignal walks the list of its listeners to add one and to remove one. With thousands of lines in flight on
 * the signal of one run, that walk would cost more than the requests. The one listener stays for as long as the signal
 * lives, because most waits are the only one of their moment. So a signal of `AbortSignal.any` must not come here: Node
 * keeps one with a listener for ever.
 */

export interface Interruptible {
  /** Ends the wait. It is called once, when the signal aborts. */
  interrupt(): void;
}

class AbortListeners {
  readonly #waits = new Set<Interruptible>();

  constructor(signal: AbortSignal) {
    signal.addEventListener("abort", () => this.#interruptAll(), { once: true });
  }

  add(wait: Interruptible): void {
    this.#waits.add(wait);
  }

  delete(wait: Interruptible): void {
    this.#waits.delete(wait);
  }

  #interruptAll(): void {
    for (const wait of [...this.#waits]) {
      this.delete(wait);
      wait.interrupt();
    }
  }
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
