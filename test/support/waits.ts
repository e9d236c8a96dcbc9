/**
 * Names what tests wait for. A test that ends because its time is over says which of its waits never ended
 * (`watchdog.ts`).
 */
interface Wait {
  /** Describes the wait and how far it has come. */
  readonly describe: () => string;
  readonly startedAtMs: number;
}

const open = new Set<Wait>();

/** Waits for the promise under a name. */
export async function named<T>(describe: () => string, promise: PromiseLike<T>): Promise<T> {
  const wait = { describe, startedAtMs: performance.now() };
  open.add(wait);
  try {
    return await promise;
  } finally {
    open.delete(wait);
  }
}

/** Describes the waits that have begun since then and have not ended. Those of earlier tests in the process are older. */
export function openWaits(sinceMs: number): string[] {
  const ofTest = [...open].filter(({ startedAtMs }) => startedAtMs >= sinceMs);
  return ofTest.map(({ describe, startedAtMs }) => {
    const seconds = ((performance.now() - startedAtMs) / 1000).toFixed(0);
    return `${describe()} (for ${seconds} s)`;
  });
}
