/**
 * Returns a function that does a piece of work once for all that ask for it at the same time. One run at a time is under way.
 * It may have begun too early for those that ask meanwhile, so they share the next one.
 */
export function sharedRuns<T>(work: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | null = null;
  let next: Promise<T> | null = null;
  const start = (): Promise<T> => {
    next = null;
    running = work().finally(() => {
      running = null;
    });
    return running;
  };
  return () => {
    if (next !== null) return next;
    if (running === null) return start();
    next = running.then(start, start);
    return next;
  };
}
