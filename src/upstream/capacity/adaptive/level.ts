/**
 * Compares the measurements of two limits. These functions answer the question of each experiment: is the upper limit
 * worth it, and if not, which limit is enough? They must stay pure.
 *
 * Enough is throughput × the latency at the lower limit, which is bandwidth × base delay (N. Cardwell et al., "BBR:
 * Congestion-Based Congestion Control", ACM Queue 14(5), 2016). Work and latency belong together by J. Little, "A Proof
 * for the Queuing Formula: L = λW", Operations Research 9(3), 1961.
 */

/** The measurements with so many requests in flight. */
export interface Level {
  readonly limit: number;
  /** Latency ÷ work. By Little's law, `limit ÷ unitMs` is the work that is finished in a millisecond. */
  readonly unitMs: number;
}

/** `g` times as many requests are worth it if they finish at least `g` to the power of this as much work. */
const MIN_ELASTICITY = 0.35;
/** Limits that differ by less than this part count as the same. */
const CLOSE = 0.1;

/**
 * Returns by how much `upper` is slower than more requests may be, as a logarithm. More requests gain too little
 * above 0.
 */
export const lossOf = (lower: Level, upper: Level): number =>
  Math.log(upper.unitMs / lower.unitMs) -
  (1 - MIN_ELASTICITY) * Math.log(upper.limit / lower.limit);

/** Returns how many requests finish as much as `upper` does, if each takes as long as at `lower`. */
export const enoughFor = (lower: Level, upper: Level): number =>
  Math.max(lower.limit, upper.limit * Math.min(1, lower.unitMs / upper.unitMs));

export const fasterOf = (a: Level, b: Level): Level => (a.unitMs < b.unitMs ? a : b);

export const areClose = (limit: number, other: number): boolean =>
  Math.abs(limit - other) <= Math.max(1, CLOSE * other);
