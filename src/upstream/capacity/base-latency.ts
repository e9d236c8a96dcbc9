import type { Round } from "./concurrency-round.ts";

/** Waiting that is nobody's concern; on very fast targets it is our own event loop. */
const SLACK_MS = 10;
/** More is worth it while the pace grows with no more than this power of it: see the header of concurrency.ts. */
const MAX_ELASTICITY = 2 / 3;
/** How fast the base follows a latency below it. */
const GAIN = 0.3;
/** Above so many times its level, the pace of the base is learned anew. */
const FAR_ABOVE = 2;

/**
 * What a unit of work costs while nobody waits. The part of it that goes with the size of an answer, the
 * {@link Round.paceMs | pace}, may grow with what is in flight. So the base is known for one *level*, the requests
 * that were in flight then. At another level it is as much longer or shorter as the pace is, above it by no more
 * than is worth it; the excess counts as waiting.
 */
export class BaseLatency {
  #unitMs = Number.POSITIVE_INFINITY;
  /** Of `#unitMs`; 0 as long as it is not known. */
  #paceMs = 0;
  #level = 0;

  /** The base at the level and with the pace of a round. */
  unitMsAt(round: Round, level: number): number {
    return this.#unitMs + this.#rise(round, level);
  }

  /** What a round may have taken with nobody waiting. */
  allowedUnitMs(round: Round, level: number): number {
    return this.unitMsAt(round, level) + round.perUnit(SLACK_MS);
  }

  /** What a round would have taken at the level of the base: compared with that of another, only waiting differs. */
  levelledUnitMs(round: Round, level: number): number {
    return round.unitMs - this.#rise(round, level);
  }

  /** Takes the latency of this round, as far as it is not above this. */
  learn(round: Round, level: number, mostUnitMs: number): void {
    this.#unitMs = Math.min(mostUnitMs, round.highUnitMs);
    this.#paceMs = round.paceMs;
    this.#level = level;
  }

  /** Takes its pace, however long, and nothing else: who waits in this round does not become a part of the base. */
  learnPace({ paceMs }: Round, level: number): void {
    if (paceMs === 0) return;
    if (this.#paceMs > 0) this.#unitMs += paceMs - this.#paceMs;
    this.#paceMs = paceMs;
    this.#level = level;
  }

  /** Takes its pace, and its latency too if it is lower. */
  learnIfLower(round: Round, level: number): void {
    this.#learnFirst(round, level);
    this.learnPace(round, level);
    this.#unitMs = Math.min(this.#unitMs, round.highUnitMs);
  }

  /** Approaches a latency that is lower. */
  followDown(round: Round, level: number): void {
    this.#learnFirst(round, level);
    const aboveMs = this.unitMsAt(round, level) - round.highUnitMs;
    this.#unitMs -= Math.max(0, aboveMs) * GAIN;
  }

  /** For a round in which nobody waited. */
  followUp(round: Round, level: number): void {
    if (level >= FAR_ABOVE * this.#level) this.learnPace(round, level);
  }

  #learnFirst(round: Round, level: number): void {
    if (this.#unitMs === Number.POSITIVE_INFINITY) this.learn(round, level, this.#unitMs);
  }

  #rise({ paceMs }: Round, level: number): number {
    if (paceMs === 0 || this.#paceMs === 0) return 0;
    const worthwhile = Math.max(1, level / this.#level) ** MAX_ELASTICITY;
    return Math.min(paceMs, this.#paceMs * worthwhile) - this.#paceMs;
  }
}
