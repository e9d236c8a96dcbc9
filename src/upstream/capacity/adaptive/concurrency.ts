/**
 * How many requests a target is given at once: samples of attempts go in, a number comes out. No clock and no
 * timer; what time it is, the samples say.
 *
 * **The question** is what batch work wants: does the target finish more work with more requests in flight? The
 * answer comes from experiments. In between the limit is held, and nothing that a single answer does can move it.
 *
 * | Phase | What happens | What ends it |
 * |---|---|---|
 * | climb | each round steps up: doubling at the start, later by a few and then by ever more | more requests gain too little (`throughput.ts`): the limit goes to what is enough for the throughput that was measured |
 * | hold | the limit stays, and its latency is averaged | some rounds, more each time it was right: then climb; a latency that jumps: then look |
 * | look | two rounds at three quarters and at half of the limit | the two tell what a unit of work takes when none waits, and so how many requests are enough |
 *
 * **Refusals** (`refusals.ts`) set a ceiling at once. Scattered ones do not, nor do broken connections.
 *
 * **Sharing.** Each look leaves a few requests more than enough, so whoever has little gains on whoever has much. Two
 * that share a target cannot tell each other's load from a server that slows down gently, and would outbid each
 * other. So there is an end to what a unit may take: beyond it, whoever can make the target faster by stepping
 * down gives up a fifth; equal steps up and proportional ones down make shares equal. Whoever cannot is either small
 * or not the cause; after two such looks the slower pace is taken for normal.
 *
 * Nothing grows that is not used, and nothing leaves the bounds.
 *
 * Sources:
 * - J. Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9(3), 1961.
 * - N. Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016: bandwidth × base delay, and
 *   to learn each of the two while the other does not disturb it.
 * - M. Dong et al., "PCC: Re-architecting Congestion Control for Consistent High Performance", NSDI 2015: to try a
 *   rate, see what comes of it, and move only then.
 * - D.-M. Chiu, R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
 *   Networks", Computer Networks and ISDN Systems 17, 1989: equal steps up and proportional ones down are fair.
 * - G.-I. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022.
 */
import { Refusals } from "./refusals.ts";
import { type Level, Round, type Sample } from "./round.ts";
import {
  DOUBT,
  enoughFor,
  fastestFor,
  gainsTooLittle,
  isSurprise,
  isTooSlow,
} from "./throughput.ts";

export type { Sample } from "./round.ts";

export interface ConcurrencyBounds {
  readonly min: number;
  readonly max: number;
}

/** Why the limit has moved last. */
export type MoveReason =
  | "start"
  /** More requests in flight are tried. */
  | "climb"
  /** More of them finished too little more work. */
  | "no_gain"
  /** Fewer are tried, to see what an answer takes when none waits. */
  | "look"
  /** Back from a look, to what is enough. */
  | "looked"
  /** Answers take too long with so many. */
  | "slow"
  | "refused"
  | "timed_out"
  /** Too little work to say anything. */
  | "unused"
  | "configured";

const START_LIMIT = 16;
/** Rounds before the next experiment; twice as many each time the limit was right. */
const PATIENCE = { min: 2, max: 32 };
/** A climb costs nothing where requests wait; a look costs throughput. */
const CLIMBS_PER_LOOK = 4;
const LOOKS_AT = [0.75, 0.5] as const;
/** A look that makes an answer no faster than this changes nothing. */
const UNCHANGED = 0.97;
/** What is given up when others are there: after a refusal, and when the target is too slow. */
const GIVE_UP = { refused: 0.9, slow: 0.8 };
/** Times the square root of the limit: a first step up, and what may wait. */
const STEP_FACTOR = 0.4;

const isNear = (a: number, b: number) => Math.abs(a - b) <= Math.max(1, 0.1 * b);
const stepOf = (limit: number) => Math.max(1, STEP_FACTOR * Math.sqrt(limit));

export class AdaptiveConcurrency {
  #bounds: ConcurrencyBounds;
  #limit = START_LIMIT;
  #reason: MoveReason = "start";
  #phase: "start" | "climb" | "hold" | "look" = "start";
  #round = new Round(START_LIMIT, { inFlight: 0, nowMs: 0, isSettled: true });
  #refusals = new Refusals();
  /** Up to two lower levels, in rising order: what an answer takes when none waits. */
  #below: readonly Level[] = [];
  /** The limit that proved right, as it is measured now. */
  #held: Level | null = null;
  #fastestMs = Number.POSITIVE_INFINITY;
  #step = START_LIMIT;
  #patience = PATIENCE.min;
  #roundsHeld = 0;
  #climbsSinceLook = 0;
  #looksInVain = 0;
  #isTooSlow = false;
  #inFlight = 1;
  #nowMs: number | null = null;
  #latencyMs = 0;

  constructor(bounds: ConcurrencyBounds) {
    this.#bounds = bounds;
    this.restart();
  }

  /** An integer within the bounds. */
  get limit(): number {
    return this.#limit;
  }

  get reason(): MoveReason {
    return this.#reason;
  }

  /** After an outage: forgets everything, and starts small again. */
  restart(): void {
    this.#refusals = new Refusals();
    this.#below = [];
    this.#held = null;
    this.#fastestMs = Number.POSITIVE_INFINITY;
    this.#phase = "start";
    this.#step = START_LIMIT;
    this.#nowMs = null;
    this.#move(START_LIMIT, "start");
  }

  /** Keeps what was learned, as far as it lies within them. */
  setBounds(bounds: ConcurrencyBounds): void {
    this.#bounds = bounds;
    if (this.#within(this.#limit) !== this.#limit) this.#hold(this.#limit, "configured");
  }

  note(sample: Sample): void {
    if (this.#bounds.min === this.#bounds.max) return;
    this.#inFlight = sample.inFlight;
    this.#nowMs = sample.endedAtMs;
    this.#round.note(sample);
    const { signal } = sample;
    if (signal === "overloaded" || signal === "timed_out") {
      this.#noteRefusal(sample, signal === "overloaded" ? "refused" : "timed_out");
      return;
    }
    if (signal === "good") this.#refusals.noteAnswer();
    if (this.#round.isComplete) this.#endRound();
  }

  #noteRefusal(sample: Sample, reason: "refused" | "timed_out"): void {
    const isOurs = this.#phase === "climb" || this.#phase === "start";
    const proven = this.#phase === "climb" ? (this.#held?.limit ?? 1) : null;
    const verdict = this.#refusals.note(sample, this.#limit, proven);
    if (verdict === null || (verdict.limit >= this.#limit && !isOurs)) return;
    let { limit } = verdict;
    if (verdict.isNew) {
      const { pauseMs } = sample;
      // A pause is dear enough to stay below the ceiling for, and who shares it pays as well.
      const isFree = this.#phase !== "start" && pauseMs === 0;
      if (isFree) limit = Math.max(1, Math.round(limit * GIVE_UP.refused));
      const cost = { nowMs: sample.endedAtMs, latencyMs: this.#latencyMs, pauseMs, isOurs };
      this.#refusals.hold(Math.max(limit, proven ?? 0), cost);
    }
    this.#hold(limit, reason);
    this.#patience = PATIENCE.min;
  }

  #endRound(): void {
    const { level, latencyMs, isUsed, canGrow } = this.#round;
    this.#latencyMs = latencyMs;
    if (!isUsed) {
      const isTrying = this.#phase === "climb" || this.#phase === "look";
      if (isTrying && this.#held !== null) this.#hold(this.#held.limit, "unused");
      else this.#beginRound();
      return;
    }
    if (this.#phase === "hold") {
      this.#goOnHolding(level, canGrow);
      return;
    }
    this.#fastestMs = Math.min(this.#fastestMs, level.unitMs + 2 * level.errorMs);
    if (this.#phase === "look") this.#goOnLooking(level);
    else this.#goOnClimbing(level, canGrow);
  }

  #goOnClimbing(level: Level, canGrow: boolean): void {
    this.#isTooSlow = isTooSlow(level, this.#fastestMs);
    if (this.#isTooSlow) {
      this.#held ??= level;
      if (this.#look(this.#held)) return;
    }
    if (gainsTooLittle(level, this.#below)) {
      this.#hold(enoughFor(level, this.#below), "no_gain");
      return;
    }
    if (!canGrow) {
      this.#beginRound();
      return;
    }
    const last = this.#below.at(-1);
    // Levels that are close together tell no line.
    if (last === undefined || level.limit >= 1.5 * last.limit) {
      this.#below = [...this.#below.slice(-1), level];
    }
    this.#held = level;
    this.#step = Math.min(2 * this.#step, this.#limit);
    if (!this.#stepUp()) this.#hold(this.#limit, this.#reason);
  }

  /** False when there is nowhere to go. */
  #stepUp(): boolean {
    const most = this.#refusals.mostAt(this.#nowMs ?? 0, this.#limit);
    const next = this.#within(Math.min(this.#limit + this.#step, most));
    if (next <= this.#limit) return false;
    if (this.#phase !== "start") this.#phase = "climb";
    this.#move(next, "climb");
    return true;
  }

  #hold(limit: number, reason: MoveReason): void {
    const before = this.#held?.limit ?? 0;
    const isRight = isNear(limit, before);
    this.#patience = isRight ? Math.min(PATIENCE.max, 2 * this.#patience) : PATIENCE.min;
    this.#phase = "hold";
    this.#roundsHeld = 0;
    this.#isTooSlow = false;
    this.#move(limit, reason);
    this.#step = stepOf(this.#limit);
    this.#held = { limit: this.#limit, unitMs: 0, errorMs: 0, answersPerWork: 1 };
  }

  #goOnHolding(level: Level, canGrow: boolean): void {
    const before = this.#held ?? level;
    const isAlarm = this.#roundsHeld > 1 && isSurprise(level, before);
    const gain = Math.max(1 / 4, 1 / ++this.#roundsHeld);
    const held: Level = {
      ...level,
      unitMs: before.unitMs + gain * (level.unitMs - before.unitMs),
      errorMs: Math.hypot((1 - gain) * before.errorMs, gain * level.errorMs),
    };
    this.#held = held;
    if (isAlarm || this.#roundsHeld >= this.#patience) {
      this.#climbsSinceLook++;
      // Where a target refuses, nothing waits.
      const isDue = this.#climbsSinceLook >= CLIMBS_PER_LOOK && !this.#refusals.isNear(held.limit);
      const isNeeded = isAlarm || isDue || isTooSlow(held, this.#fastestMs);
      if (isNeeded && this.#look(held)) return;
      if (canGrow && this.#climbFrom(held)) return;
    }
    this.#beginRound();
  }

  #climbFrom(held: Level): boolean {
    const below = this.#below;
    this.#below = [...below.filter(({ limit }) => limit < held.limit).slice(0, 1), held];
    if (this.#stepUp()) return true;
    this.#below = below;
    return false;
  }

  /** False when the limit is too small for it. */
  #look({ limit }: Level): boolean {
    this.#climbsSinceLook = 0;
    const lower = this.#within(Math.floor(limit * LOOKS_AT[0]));
    if (lower >= limit) return false;
    this.#phase = "look";
    this.#below = [];
    this.#move(lower, "look");
    return true;
  }

  #goOnLooking(level: Level): void {
    const held = this.#held ?? level;
    this.#below = [level, ...this.#below];
    const lower = this.#within(Math.floor(held.limit * LOOKS_AT[1]));
    if (this.#below.length === 1 && lower < level.limit) {
      this.#move(lower, "look");
      return;
    }
    const isSlow = this.#isTooSlow || isTooSlow(held, this.#fastestMs);
    const isInVain = this.#below.every(
      ({ unitMs, errorMs }) => unitMs + DOUBT * errorMs > UNCHANGED * held.unitMs,
    );
    this.#looksInVain = isSlow && isInVain ? this.#looksInVain + 1 : 0;
    if (this.#looksInVain >= 2) {
      this.#looksInVain = 0;
      this.#fastestMs = fastestFor(held);
      this.#hold(held.limit, "looked");
    } else if (gainsTooLittle(held, this.#below)) {
      const enough = enoughFor(held, this.#below);
      this.#hold(enough + stepOf(enough), "looked");
    } else if (isSlow && !isInVain) this.#hold(held.limit * GIVE_UP.slow, "slow");
    else this.#hold(held.limit + (isSlow ? stepOf(held.limit) : 0), "looked");
  }

  #move(limit: number, reason: MoveReason): void {
    const next = this.#within(limit);
    if (next !== this.#limit) this.#reason = reason;
    this.#limit = next;
    this.#beginRound();
  }

  #beginRound(): void {
    const inFlight = this.#inFlight - 1;
    const isSettled = this.#phase === "hold" && this.#roundsHeld > 0;
    this.#round = new Round(this.#limit, { inFlight, nowMs: this.#nowMs, isSettled });
  }

  #within(limit: number): number {
    return Math.min(this.#bounds.max, Math.max(this.#bounds.min, Math.round(limit)));
  }
}
