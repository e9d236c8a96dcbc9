/**
 * How many requests a target is given at once: samples of attempts go in, a number comes out. No clock, no
 * timer; what time it is, the samples say.
 *
 * **The question** is whether more concurrency is still worth it. With `L` requests in flight and a latency of `u`
 * for a unit of work, throughput is `L ÷ u` (Little), so `g` times as many are worth it while they make `u` grow
 * by clearly less than `g`. There are two kinds of latency, and they tell different things:
 *
 * - *Waiting in line* is the same for short and long answers. A target with a line is full: more requests only make
 *   it longer. This is measured against the *base*, what a unit costs when nobody waits ({@link BaseLatency}).
 * - *Pace* goes with the size of an answer. A server that batches continuously (vLLM, SGLang, TGI) needs a
 *   little more time for a token with each request that joins, while all of them together get more tokens. That
 *   is no waiting, and the base rises with it, as long as it is worth it: up to the elasticity
 *   `d ln u ÷ d ln L = ⅔`, which is where Kleinrock's generalized power `throughput² ÷ latency` is at its peak.
 *   Plain power peaks at ½; batch work cares for throughput. Where a token takes `a + b·L`, that is `L = 2a ÷ b`.
 *
 * A round tells them apart by how latency depends on size ({@link Round.paceMs}). Where all sizes are equal, or
 * none is known, nothing can be told and all that is above the base counts as waiting. Then a server that slows
 * down gently is kept at low latency rather than at its highest throughput; the lower bound is there to overrule
 * that. Differences that chance may explain, or of some milliseconds only, are none.
 *
 * **Rounds.** Everything but a refusal is judged once a round, over about as many answers as are in flight
 * ({@link Round}), so that each change shows before the next one.
 *
 * | State | What a round does |
 * |---|---|
 * | slow start | doubles the limit, until the first sign of waiting, a pace that is not worth it, or a refusal |
 * | cruise | `limit × base ÷ latency + a few`: with nobody waiting it grows, slowly at first and faster the longer that lasts; otherwise it settles where those few wait. As the number depends on the limit, and the latency is the same for all, sharers of a target settle at equal limits |
 * | look | steps the limit down as long as that shortens the waiting by much. What is left is the base, for this many in flight, and the queue follows from Little's law: the limit goes to `limit × base ÷ latency` at once. If it was pace and worth it, that is where it was before |
 *
 * **Looks** come at the end of slow start, when latency has risen by a third, when cruising has given up a third in
 * vain, and every so many rounds. Only they raise the base for waiting: a later sharer would take the queue that
 * it finds for the normal state, and a look of its own drains it. A look that changes nothing means that the
 * latency is not of our making: the base rises, by a step at first and by more if the next look says the same,
 * and the limit goes back to where it was.
 *
 * **Refusals and timeouts** shrink the limit at once, and again only for requests that started after that; then
 * it is held for a while ({@link OverloadMemory}) and approaches slowly the place where it was refused.
 *
 * Nothing grows that is not used, and nothing leaves the bounds. Whoever shares a target that slows down without ever
 * making requests wait sees a part of its own effect only, and goes further than it would alone.
 *
 * Sources:
 * - J. Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9(3), 1961.
 * - L. Kleinrock, "Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer Communications",
 *   ICC 1979: where throughput and latency balance, and the exponent for those who value one of them more.
 * - G.-I. Yu, J. S. Jeong, G.-W. Kim, S. Kim, B.-G. Chun, "Orca: A Distributed Serving System for Transformer-Based
 *   Generative Models", OSDI 2022: continuous batching.
 * - V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988: slow start, back off at once.
 * - D.-M. Chiu, R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
 *   Networks", Computer Networks and ISDN Systems 17, 1989: why additive increase with multiplicative decrease is fair.
 * - D. X. Wei, C. Jin, S. H. Low, S. Hegde, "FAST TCP: Motivation, Architecture, Algorithms, Performance",
 *   IEEE/ACM Transactions on Networking 14(6), 2006: the rule of the cruise.
 * - E. Landau, W. Thurston, T. Bozarth, "Performance Under Load", Netflix Technology Blog, 2018: the same rule
 *   for requests, with the square root of the limit as what may wait.
 * - P. Balasubramanian, O. Ertugay, D. Havey, M. Bagnulo, "LEDBAT++: Congestion Control for Background Traffic",
 *   IRTF draft-irtf-iccrg-ledbat-plus-plus: the periodic looks, for the sake of late-comers.
 */
import { BaseLatency } from "./base-latency.ts";
import { Round, type Sample } from "./concurrency-round.ts";
import { OverloadMemory } from "./overload-memory.ts";

export type { Sample } from "./concurrency-round.ts";

export interface ConcurrencyBounds {
  readonly min: number;
  readonly max: number;
}

const START_LIMIT = 16;
/** In slow start: so much above the base is a sign of waiting. */
const SLOW_START_TOLERANCE = 1.15;
const OVERLOAD_FACTOR = 0.9;
/** Times the square root of the limit: how many may wait. */
const QUEUE_FACTOR = 0.4;
/** Clear rounds beyond all that is known, after which growth doubles with each. */
const ROUNDS_TO_DOUBLING = 4;
/** Above the base by so much, and by some requests more, the limit is far off. */
const SEVERE = 1.3;
const SEVERE_REQUESTS = 2.5;
const ROUNDS_BETWEEN_LOOKS = 30;
/** Cruising down to this share of the limit of the last look asks for another. */
const GIVEN_UP_SHARE = 0.7;
const LOOK_STEP = { min: 0.25, max: 0.5 };
/** A step of a look that leaves no more than this share of the latency calls for the next. */
const STEP_HELPED = 0.87;
/** A look that leaves more than this share of the latency changed nothing. */
const LOOK_CHANGED = 0.93;
/** By how much a look in vain may raise the base, and one that repeats it within so many rounds. */
const MAX_BASE_RISE = { first: 1.15, repeated: 2 };
const ROUNDS_TO_REPEAT = 2;
/** Rounds of a look wait so much longer for what started before: long answers, at the old pace. */
const LOOK_PATIENCE = 1.5;

interface Look {
  readonly fromLimit: number;
  readonly fromLevel: number;
  readonly fromRound: Round;
  /** Whether one before it, a moment ago, changed nothing. */
  readonly isRepeated: boolean;
  /** Before the latest step. */
  readonly lastUnitMs: number;
}

/** `part ÷ whole`, and 1 if it is not a part. */
const share = (part: number, whole: number) => (part < whole ? part / whole : 1);

export class AdaptiveConcurrency {
  #bounds: ConcurrencyBounds;
  /** With a fraction on its way to the next request. */
  #limit = 0;
  #inFlight = 0;
  #decreasedAtMs = Number.NEGATIVE_INFINITY;
  #round = new Round(0);
  #base = new BaseLatency();
  #isSlowStart = true;
  #look: Look | null = null;
  #roundsSinceLook = 0;
  #lookedAtLimit = 0;
  #wasLookInVain = false;
  /** Rounds in a row in which nobody waited and the limit might grow. */
  #clearRounds = 0;
  /** Those of them that were past the last refusal. */
  #unknownRounds = 0;
  #overloads = new OverloadMemory();

  constructor(bounds: ConcurrencyBounds) {
    this.#bounds = bounds;
    this.restart();
  }

  /** An integer within the bounds. */
  get limit(): number {
    return Math.floor(this.#limit);
  }

  /** After an outage: forgets everything, and starts small again. */
  restart(): void {
    this.#limit = this.#within(START_LIMIT);
    this.#round = new Round(0);
    this.#base = new BaseLatency();
    this.#isSlowStart = true;
    this.#overloads = new OverloadMemory();
    this.#lookedAtLimit = 0;
    this.#forgetRounds();
  }

  /** Keeps what was learned, as far as it lies within them. */
  setBounds(bounds: ConcurrencyBounds): void {
    this.#bounds = bounds;
    this.#limit = this.#within(this.#limit);
  }

  note(sample: Sample): void {
    if (this.#bounds.min === this.#bounds.max) return;
    this.#inFlight = sample.inFlight;
    const isOverload = sample.signal === "overloaded" || sample.signal === "timed_out";
    if (isOverload && sample.startedAtMs > this.#decreasedAtMs) {
      this.#backOff(sample.endedAtMs);
      return;
    }
    this.#round.note(sample);
    if (this.#round.isComplete) this.#endRound(sample.endedAtMs);
  }

  #backOff(nowMs: number): void {
    const refusedAt = this.#limit;
    this.#isSlowStart = false;
    this.#lookedAtLimit = 0;
    this.#forgetRounds();
    this.#setLimit(this.limit * OVERLOAD_FACTOR, nowMs);
    this.#overloads.noteRefusal(refusedAt, this.#limit);
    // Also at the lower bound: what is in flight is evidence only once.
    this.#decreasedAtMs = nowMs;
  }

  #endRound(nowMs: number): void {
    this.#overloads.noteAnswers(this.#round.answerCount);
    if (this.#look !== null) this.#goOnLooking(this.#look, nowMs);
    else if (this.#isSlowStart) this.#startUp(nowMs);
    else this.#cruise(nowMs);
  }

  #startUp(nowMs: number): void {
    const round = this.#round;
    const level = this.#level;
    const tolerableUnitMs = this.#base.allowedUnitMs(round, level) * SLOW_START_TOLERANCE;
    if (round.hasUsed(this.limit) && round.lowUnitMs > tolerableUnitMs) {
      this.#isSlowStart = false;
      this.#startLook(nowMs);
      return;
    }
    this.#base.learnIfLower(round, level);
    this.#isSlowStart = this.#limit < this.#bounds.max;
    const factor = round.supportsGrowthOf(this.limit) ? 2 : 1;
    this.#setLimit(this.#limit * factor, nowMs);
  }

  #cruise(nowMs: number): void {
    this.#base.followDown(this.#round, this.#level);
    this.#roundsSinceLook++;
    if (this.#isTimeToLook()) {
      this.#startLook(nowMs);
      return;
    }
    const mayWait = QUEUE_FACTOR * Math.sqrt(this.#limit);
    const waiting = this.limit * (1 - share(this.#allowedUnitMs, this.#round.lowUnitMs));
    const isClear = waiting < mayWait / 4;
    this.#countClearRound(isClear);
    if (isClear) this.#base.followUp(this.#round, this.#level);
    const growth = isClear ? this.#clearGrowth() : mayWait;
    const canGrow = this.#round.supportsGrowthOf(this.limit);
    const next = this.#limit - waiting + (canGrow ? growth : 0);
    this.#setLimit(Math.min(next, Math.max(this.#limit, this.#overloads.most)), nowMs);
  }

  get #allowedUnitMs(): number {
    return this.#base.allowedUnitMs(this.#round, this.#level);
  }

  get #levelledUnitMs(): number {
    return this.#base.levelledUnitMs(this.#round, this.#level);
  }

  /** How many requests the round is about. */
  get #level(): number {
    return Math.min(this.limit, this.#round.peakInFlight);
  }

  /** Not while something else, such as a rate, holds what is in flight: to step below that would only cost throughput. */
  #isTimeToLook(): boolean {
    if (!this.#round.hasUsed(this.limit)) return false;
    const { lowUnitMs } = this.#round;
    const limit = this.#limit;
    if (lowUnitMs > this.#allowedUnitMs * (SEVERE + SEVERE_REQUESTS / limit)) return true;
    if (lowUnitMs > this.#allowedUnitMs && this.#hasGivenUp(limit)) return true;
    return this.#roundsSinceLook >= ROUNDS_BETWEEN_LOOKS;
  }

  #countClearRound(isClear: boolean): void {
    this.#clearRounds = isClear && !this.#overloads.isHolding ? this.#clearRounds + 1 : 0;
    this.#unknownRounds =
      isClear && this.#overloads.isPast(this.#limit) ? this.#unknownRounds + 1 : 0;
  }

  /** The same for small and large limits: among sharers of a target that refuses, this lets the small ones catch up. */
  #clearGrowth(): number {
    const doublings = Math.max(0, this.#unknownRounds - ROUNDS_TO_DOUBLING);
    return Math.min(Math.max(1, this.#clearRounds) * 2 ** doublings, Math.max(1, this.#limit / 2));
  }

  #startLook(nowMs: number): void {
    const from = {
      fromLimit: this.#limit,
      fromLevel: this.#level,
      fromRound: this.#round,
      isRepeated: this.#wasLookInVain && this.#roundsSinceLook <= ROUNDS_TO_REPEAT,
    };
    this.#forgetRounds();
    this.#stepDown(from, nowMs);
  }

  #stepDown(from: Omit<Look, "lastUnitMs">, nowMs: number): void {
    this.#look = { ...from, lastUnitMs: this.#levelledUnitMs };
    const factor = Math.max(LOOK_STEP.min, share(this.#allowedUnitMs, this.#round.unitMs));
    this.#setLimit(Math.round(this.#level * Math.min(LOOK_STEP.max, factor)), nowMs);
  }

  #goOnLooking(look: Look, nowMs: number): void {
    if (this.#levelledUnitMs < look.lastUnitMs * STEP_HELPED && this.limit > this.#bounds.min) {
      this.#stepDown(look, nowMs);
      return;
    }
    this.#look = null;
    this.#base.learnPace(this.#round, this.#level);
    this.#lookedAtLimit = this.#learnFrom(look);
    this.#setLimit(this.#lookedAtLimit, nowMs);
  }

  /** Says what the limit should have been. */
  #learnFrom({ fromLimit, fromLevel, fromRound, isRepeated }: Look): number {
    const base = this.#base;
    const fromUnitMs = base.levelledUnitMs(fromRound, fromLevel);
    const hasChanged = this.#levelledUnitMs < fromUnitMs * LOOK_CHANGED;
    this.#wasLookInVain = !hasChanged;
    if (hasChanged) {
      base.learn(this.#round, this.#level, base.unitMsAt(this.#round, this.#level));
      return fromLimit * share(base.allowedUnitMs(fromRound, fromLevel), fromRound.lowUnitMs);
    }
    const maxRise = isRepeated ? MAX_BASE_RISE.repeated : MAX_BASE_RISE.first;
    base.learn(this.#round, this.#level, this.#allowedUnitMs * maxRise);
    return this.#beforeGivingUp(fromLimit);
  }

  /** The limit of the last look, if much of it was given up since. */
  #beforeGivingUp(limit: number): number {
    return this.#hasGivenUp(limit) ? this.#lookedAtLimit : limit;
  }

  #hasGivenUp(limit: number): boolean {
    return limit < GIVEN_UP_SHARE * this.#lookedAtLimit;
  }

  #forgetRounds(): void {
    this.#look = null;
    this.#wasLookInVain = false;
    this.#roundsSinceLook = 0;
    this.#clearRounds = 0;
    this.#unknownRounds = 0;
  }

  #setLimit(limit: number, nowMs: number): void {
    const next = this.#within(limit);
    if (next < this.#limit) this.#decreasedAtMs = nowMs;
    this.#limit = next;
    const patience = this.#look === null ? 1 : LOOK_PATIENCE;
    this.#round = new Round((this.#inFlight - 1) * patience);
  }

  #within(limit: number): number {
    return Math.min(this.#bounds.max, Math.max(this.#bounds.min, limit));
  }
}
