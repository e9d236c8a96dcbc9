/**
 * One round of the learned limit: what the attempts of one generation say of a limit that is kept the same meanwhile. It
 * only measures, and `concurrency.ts` decides what follows.
 */
import type { Level } from "./level.ts";

/** The report of one attempt about how much its target can take. */
export interface Sample {
  readonly startedAtMs: number;
  readonly endedAtMs: number;
  /**
   * - `good`: answered normally.
   * - `overloaded`: 429, 498, 503 or 529, and not because of a rate limit that is known.
   * - `timed_out`: no answer in time.
   * - `unclear`: a broken connection and the like; says nothing about latency, but is no reason to grow.
   */
  readonly signal: "good" | "overloaded" | "timed_out" | "unclear";
  /** The amount of work in the answer, above 0; 1 where unknown. */
  readonly work: number;
  /** Requests in flight at the target when this one ended, itself included. */
  readonly inFlight: number;
  /** The requests in flight that had started before a refused one; 0 for other signals. */
  readonly ahead: number;
  /** The time for which a refusal asks all requests to stay away; 0 when it does not. */
  readonly pauseMs: number;
}

/** It is added to each latency, so that delays of the event loop do not count on very fast targets. */
export const SLACK_MS = 10;
/** A mean of fewer answers says little. */
const MIN_ANSWERS = 8;
/** A round says something about a limit only when this part of it was in flight. */
const USED_SHARE = 0.8;
/** Nothing grows with more broken connections than this. */
const MAX_UNCLEAR_SHARE = 0.05;
/** Nearly all requests of a generation must end: short answers come first, and would make the mean too good. */
const ENDED_SHARE = 0.95;

/** A generation is also over when so many times as many requests have ended as are in flight. */
const PATIENCE = 20;

/** The point at which a round begins. */
export interface RoundStart {
  readonly inFlight: number;
  /** It is null when the round begins with the first request. */
  readonly nowMs: number | null;
  /**
   * - `held`: the limit was the same before, so nothing has to settle.
   * - `moved`: requests in flight were sent under another limit, and have to end first.
   * - `start`: the limit has moved too, but the round does not wait. It ends sooner, and slightly favours more
   *   requests.
   */
  readonly kind: "held" | "moved" | "start";
}

/**
 * Measures one limit. First the requests end that started under the limit before, then one generation is counted. It
 * counts requests and must read no clock, so a round lasts about two latencies, however long they are.
 */
export class Round {
  readonly #limit: number;
  #isSettling: boolean;
  readonly #isStart: boolean;
  /** A generation is the requests in flight at this instant. `#generationLeft` of them have not ended yet. */
  #generationAtMs: number | null;
  #generationLeft: number;
  #noted = 0;
  /** Whether no request was sent before. */
  #isFirst = false;
  #answers = 0;
  #unclear = 0;
  #peakInFlight = 0;
  #latencyMs = 0;
  #work = 0;

  constructor(limit: number, { inFlight, nowMs, kind }: RoundStart) {
    this.#limit = limit;
    this.#isSettling = kind === "moved";
    this.#isStart = kind === "start";
    this.#generationAtMs = nowMs;
    this.#generationLeft = Math.floor((this.#isStart ? limit : inFlight) * ENDED_SHARE);
  }

  note(sample: Sample): void {
    const { startedAtMs, endedAtMs, signal, inFlight } = sample;
    if (this.#generationAtMs === null) {
      // The generation excludes the requests that are sent in place of the first answers.
      this.#generationAtMs = endedAtMs - 1;
      this.#generationLeft = Math.floor(inFlight * ENDED_SHARE);
      this.#isFirst = true;
    }
    const isOlder = startedAtMs <= this.#generationAtMs;
    if (this.#isStart && isOlder && !this.#isFirst) return;
    if (isOlder || this.#isStart) this.#generationLeft--;
    // Some endings are never reported, such as those of interactive requests.
    if (++this.#noted > PATIENCE * Math.max(inFlight, MIN_ANSWERS)) this.#generationLeft = 0;
    if (this.#isSettling) {
      if (this.#generationLeft > 0) return;
      this.#isSettling = false;
      this.#noted = 0;
      this.#generationAtMs = endedAtMs;
      this.#generationLeft = Math.floor((inFlight - 1) * ENDED_SHARE);
      return;
    }
    this.#peakInFlight = Math.max(this.#peakInFlight, inFlight);
    if (signal === "unclear") this.#unclear++;
    if (signal === "good") this.#count(Math.max(0, endedAtMs - startedAtMs), sample.work);
  }

  #count(latencyMs: number, work: number): void {
    this.#answers++;
    this.#latencyMs += latencyMs;
    this.#work += work;
  }

  get isComplete(): boolean {
    const least = Math.max(this.#peakInFlight, Math.min(MIN_ANSWERS, 4 * this.#limit));
    return this.#generationLeft <= 0 && this.#answers >= least;
  }

  /** The latency of one answer, on average. */
  get latencyMs(): number {
    return this.#latencyMs / this.#answers;
  }

  get level(): Level {
    const slackMs = SLACK_MS * this.#answers;
    return { limit: this.#limit, unitMs: (this.#latencyMs + slackMs) / this.#work };
  }

  get isUsed(): boolean {
    return this.#peakInFlight >= USED_SHARE * this.#limit;
  }

  get canGrow(): boolean {
    return this.isUsed && this.#unclear <= MAX_UNCLEAR_SHARE * this.#answers;
  }
}
