/** The waits between the attempts of a delivery or a webhook. Pure: the dice are an argument. */

const BASE_MS = 5_000;

/**
 * Returns the wait after `before` earlier ones. The waits double up to a cap, and a random part of up to a fifth shortens
 * each, so that what failed together spreads out. `random` is from 0 up to 1.
 */
export const backoffMs = (before: number, random: number, capMs: number): number =>
  Math.round(Math.min(BASE_MS * 2 ** before, capMs) * (1 - random / 5));
