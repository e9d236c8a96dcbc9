/** What one attempt tells about how much its target can take. */
export interface Sample {
  readonly startedAtMs: number;
  readonly endedAtMs: number;
  /**
   * - `good`: answered normally.
   * - `overloaded`: 429, 503 or 529, and not because of a rate limit that is known.
   * - `timed_out`: no answer in time.
   * - `unclear`: a broken connection and the like; says nothing about latency, but is no reason to grow.
   */
  readonly signal: "good" | "overloaded" | "timed_out" | "unclear";
  /** How much work the answer was, above 0; 1 where unknown. */
  readonly work: number;
  /** Requests in flight at the target when this one ended, itself included. */
  readonly inFlight: number;
}

const MIN_ANSWER_COUNT = 10;
/** So much of the limit must have been in flight to say anything about it. */
const USED_SHARE = 0.8;
const MAX_UNCLEAR_SHARE = 0.05;
/** How many standard errors count as chance. */
const DOUBT = 0.5;
/** So much of their mean must sizes differ to tell anything. */
const MIN_WORK_VARIATION = 0.01;
/** A pace that is not so many times its standard error may as well be waiting. */
const PACE_CERTAINTY = 12;

/**
 * What is learned at one limit. First as many requests must end as were in flight when it was set, then about
 * as many again are counted. Because it counts and looks at no clock, a round lasts about two latencies,
 * whether that is a millisecond or ten minutes; with little to do it takes longer.
 *
 * All that end are counted, whenever they started: were it only those that started within the round, the
 * short ones would be first and the long ones missing.
 */
export class Round {
  #earlierCount: number;
  #answerCount = 0;
  #unclearCount = 0;
  #peakInFlight = 0;
  #latencyMs = 0;
  #work = 0;
  #latencySquares = 0;
  #workSquares = 0;
  #latencyTimesWork = 0;

  /** `inFlight` when the limit was set. */
  constructor(inFlight: number) {
    this.#earlierCount = inFlight;
  }

  note({ startedAtMs, endedAtMs, signal, work, inFlight }: Sample): void {
    if (this.#earlierCount > 0) {
      this.#earlierCount--;
      return;
    }
    this.#peakInFlight = Math.max(this.#peakInFlight, inFlight);
    if (signal === "unclear") this.#unclearCount++;
    if (signal !== "good") return;
    const latencyMs = Math.max(0, endedAtMs - startedAtMs);
    this.#answerCount++;
    this.#latencyMs += latencyMs;
    this.#work += work;
    this.#latencySquares += latencyMs * latencyMs;
    this.#workSquares += work * work;
    this.#latencyTimesWork += latencyMs * work;
  }

  get isComplete(): boolean {
    return this.#answerCount >= Math.max(this.#peakInFlight, MIN_ANSWER_COUNT);
  }

  get answerCount(): number {
    return this.#answerCount;
  }

  get peakInFlight(): number {
    return this.#peakInFlight;
  }

  /**
   * Latency for a unit of work. By Little's law this is what was in flight divided by the throughput, and so
   * the mix of short and long answers does not disturb it.
   */
  get unitMs(): number {
    return this.#latencyMs / this.#work;
  }

  /** The least that it is, chance aside. */
  get lowUnitMs(): number {
    return this.unitMs - DOUBT * this.#errorUnitMs;
  }

  /** The most that it is, chance aside. */
  get highUnitMs(): number {
    return this.unitMs + DOUBT * this.#errorUnitMs;
  }

  /** The standard error of a ratio of two sums. */
  get #errorUnitMs(): number {
    const { unitMs } = this;
    const squares =
      this.#latencySquares - 2 * unitMs * this.#latencyTimesWork + unitMs ** 2 * this.#workSquares;
    return Math.sqrt(Math.max(0, squares)) / this.#work;
  }

  /**
   * The part of {@link unitMs} that goes with the size of an answer, by linear regression; 0 if that cannot be
   * told. Waiting in line is not in it, as that is the same for all.
   */
  get paceMs(): number {
    const count = this.#answerCount;
    const latencyMs = this.#latencyMs / count;
    const work = this.#work / count;
    const workVariance = this.#workSquares / count - work ** 2;
    if (workVariance < (MIN_WORK_VARIATION * work) ** 2) return 0;
    const covariance = this.#latencyTimesWork / count - latencyMs * work;
    const paceMs = covariance / workVariance;
    const unexplained = this.#latencySquares / count - latencyMs ** 2 - paceMs * covariance;
    const errorMs = Math.sqrt(Math.max(0, unexplained) / workVariance / count);
    return paceMs > PACE_CERTAINTY * errorMs ? Math.min(paceMs, this.unitMs) : 0;
  }

  /** What a latency that each answer has on top comes to for a unit of work. */
  perUnit(latencyMs: number): number {
    return (latencyMs * this.#answerCount) / this.#work;
  }

  /** Whether it may be concluded from this round that there is room for more than `limit`. */
  supportsGrowthOf(limit: number): boolean {
    return this.hasUsed(limit) && this.#unclearCount <= MAX_UNCLEAR_SHARE * this.#answerCount;
  }

  hasUsed(limit: number): boolean {
    return this.#peakInFlight >= USED_SHARE * limit;
  }
}
