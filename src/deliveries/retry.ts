/** When a delivery that failed is tried again. Pure: the dice are an argument. */

const BASE_MS = 5_000;
const CAP_MS = 10 * 60 * 1000;

/** A delivery is tried for so long, counted from the time at which it was due. */
export const RETRY_WITHIN_MS = 24 * 60 * 60 * 1000;

/**
 * Returns the wait before the next attempt. The waits double up to a cap, and a random part of up to a fifth shortens each,
 * so that deliveries that failed together spread out. `random` is from 0 up to 1.
 */
export function retryAfterMs(attemptCount: number, random: number): number {
  const backoffMs = Math.min(BASE_MS * 2 ** Math.max(0, attemptCount - 1), CAP_MS);
  return Math.round(backoffMs * (1 - random / 5));
}
