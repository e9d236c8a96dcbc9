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

const waitsOn = new WeakMap<AbortSignal, Set<Interruptible>>();

function waitsOf(signal: AbortSignal): Set<Interruptible> {
  const waits = new Set<Interruptible>();
  waitsOn.set(signal, waits);
  // The end of one wait may end others.
  const interruptAll = () => {
    for (const wait of waits) {
      waits.delete(wait);
      wait.interrupt();
    }
  };
  signal.addEventListener("abort", interruptAll, { once: true });
  return waits;
}

/** Interrupts the wait when the signal aborts. The caller must have seen that it has not aborted yet. */
export function onAbort(signal: AbortSignal, wait: Interruptible): void {
  (waitsOn.get(signal) ?? waitsOf(signal)).add(wait);
}

export function offAbort(signal: AbortSignal, wait: Interruptible): void {
  waitsOn.get(signal)?.delete(wait);
}
