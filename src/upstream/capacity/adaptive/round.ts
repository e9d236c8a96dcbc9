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
  /** For how long a refusal asks everybody to stay away; 0 when it does not. */
  readonly pauseMs: number;
}

/** What was measured with so many requests in flight. */
export interface Level {
  readonly limit: number;
  /** Latency ÷ work. By Little's law, `limit ÷ unitMs` is the work that is finished in a millisecond. */
  readonly unitMs: number;
}

/** Added to each latency: what the event loop may delay an answer by shall not count, on very fast targets. */
const SLACK_MS = 10;
/** A mean of fewer answers says little. */
const MIN_ANSWERS = 8;
/** So much of the limit must have been in flight to say anything about it. */
const USED_SHARE = 0.8;
/** With more broken connections than this, nothing grows. */
const MAX_UNCLEAR_SHARE = 0.05;
/** Nearly all requests of a generation must end: short answers come first, and would flatter the mean. */
const ENDED_SHARE = 0.95;

/** A generation is over, too, when so many times as many requests have ended as are in flight. */
const PATIENCE = 20;

/** Where a round begins. */
export interface RoundStart {
  readonly inFlight: number;
  /** Null: with the first request. */
  readonly nowMs: number | null;
  /**
   * - `held`: the limit was the same before, so nothing has to settle.
   * - `moved`: what is in flight was sent under another limit, and has to end first.
   * - `start`: so has that, but nobody waits for it. Sooner, and a little in favour of more.
   */
  readonly kind: "held" | "moved" | "start";
}

/**
 * Measures one limit: first the requests end that started under the limit before, then one generation is counted.
 * It counts requests and looks at no clock, so a round lasts about two latencies, whatever those are.
 */
export class Round {
  readonly #limit: number;
  #isSettling: boolean;
  readonly #isStart: boolean;
  /** A generation is what was in flight at this instant; so many of it have not ended yet. */
  #generationAtMs: number | null;
  #generationLeft: number;
  #noted = 0;
  /** Nothing was sent before. */
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
      // Not those that are sent in place of the first answers.
      this.#generationAtMs = endedAtMs - 1;
      this.#generationLeft = Math.floor(inFlight * ENDED_SHARE);
      this.#isFirst = true;
    }
    const isOlder = startedAtMs <= this.#generationAtMs;
    if (this.#isStart && isOlder && !this.#isFirst) return;
    if (isOlder || this.#isStart) this.#generationLeft--;
    // Some endings are never told, such as those of interactive requests.
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

  /** Of one answer, on average. */
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
