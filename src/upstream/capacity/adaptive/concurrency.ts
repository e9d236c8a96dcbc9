/**
 * Decides how many requests a target is given at once: samples of attempts go in, a number comes out. It must use no
 * clock and no timer; the samples carry the time.
 *
 * **The question** of batch work is: does the target finish more work with more requests in flight? The answer comes
 * from experiments, each a comparison of two limits. Between experiments the limit is held, and no single answer can
 * move it.
 *
 * - **Climb** tries more: twice as many at the start, later a quarter more and then by ever more. It goes on while they finish
 *   enough more work; else, if a second round agrees, the limit is the one that is enough.
 * - **Hold** tries nothing: latency and its noise are averaged, for some rounds, more each time the limit proved right, and for
 *   seconds in the end. Then come a climb and a probe of the latency in turns.
 * - **Probe latency** tries a fifth less. If the lower limit finishes nearly as much, beyond the noise, the limit is the one that
 *   is enough; else it goes back.
 *
 * **Enough** is throughput × the latency at the lower of the two limits, which is bandwidth × base delay.
 *
 * **Refusals** (`refusals.ts`) set a ceiling at once. Near a ceiling no request waits, so latency says nothing about
 * the limit there. Scattered refusals set no ceiling, and broken connections set none either. Refusals that are as
 * frequent at half the limit (`stray-refusals.ts`) count as scattered.
 *
 * **Sharing.** Two clients that share a target each gain by taking more, at the cost of the other. Neither can tell
 * that from a server that slows down gently. Answers may therefore slow down only so far: beyond that bound no client
 * climbs, and a client whose latency probe makes answers faster gives up a fifth. A client whose probe changes nothing probes
 * deeper. If the deepest probe changes nothing either, the target has become slower, and its latency counts as normal
 * from then on.
 *
 * An unused limit must not grow, and the limit must not leave its bounds. Sources:
 * - N. Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016: bandwidth × base delay,
 *   and to learn each of the two while the other does not disturb it.
 * - M. Dong et al., "PCC: Re-architecting Congestion Control for Consistent High Performance", NSDI 2015: to try a
 *   rate, measure its effect, and move only then.
 * - D.-M. Chiu, R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
 *   Networks", Computer Networks and ISDN Systems 17, 1989: proportional steps down make shares equal.
 */
import { areClose, enoughFor, fasterOf, type Level, lossOf } from "./level.ts";
import { Refusals } from "./refusals.ts";
import { Round, type Sample } from "./round.ts";

export type { Sample } from "./round.ts";

export interface ConcurrencyBounds {
  readonly min: number;
  readonly max: number;
}

/** The reason for the last move of the limit. */
export type MoveReason =
  | "start"
  /** More requests in flight are tried. */
  | "climb"
  /** More requests finished too little more work. */
  | "no_gain"
  /** Fewer requests are tried, to learn how long an answer takes when none waits. */
  | "probe_latency"
  /** The limit went from a probe to the number that is enough. */
  | "latency_probed"
  /** Answers take too long with so many. */
  | "slow"
  | "refused"
  | "timed_out"
  /** Lines came after interactive requests, or the other way round, before an experiment was over. */
  | "turned"
  | "configured";

const START_LIMIT = 16;
/** A first step up, as a share of the limit: the smallest whose effect stands out from the noise of one round. */
const STEP = 0.25;
/** Leads back from a step up. */
const DOWN = 1 / (1 + STEP);
/** No answer shall take so many times as long as the fastest, whatever work gets done. */
const MAX_SLOWDOWN = 2.5;
/** The rounds before the next experiment; twice as many each time the limit was right. */
const PATIENCE = { min: 2, max: 16 };
/**
 * The time between two experiments once the limit proved right several times. A fast target goes through many rounds in it,
 * and each experiment costs it work.
 */
const CALM_MS = 2_000;
/** The number of probes in a row that make slow answers no faster, after which slow answers count as normal. */
const MAX_PROBES_IN_VAIN = 4;
/** The limit keeps this part when it is refused without a climb. */
const REFUSED = 0.9;
/** A first step beyond a ceiling, in square roots of the limit. It is small so that few requests are refused. */
const STEP_AT_CEILING = 0.4;
/** The weight of a round in the averages of latency and of noise: about the last dozen rounds count. */
const WEIGHT = { latency: 1 / 4, noise: 1 / 8 };
/** A probe was in vain when it makes answers faster by less than this and the noise, as a logarithm. */
const IN_VAIN = 0.05;

type Lane = "batch" | "interactive";

/** What is known of the answers of one lane. It does not compare with what is known of the other's. */
interface Known {
  /** The difference between two rounds at the same limit, as a logarithm. */
  noise: number;
  fastestMs: number;
}

/** So many answers in a row of the other lane turn to it. A line now and then, beside interactive requests, does not. */
const TURN_AFTER = 8;

const nothingKnown = (): Known => ({ noise: 0, fastestMs: Number.POSITIVE_INFINITY });

export class AdaptiveConcurrency {
  #bounds: ConcurrencyBounds;
  #limit = START_LIMIT;
  #reason: MoveReason = "start";
  #phase: "start" | "climb" | "hold" | "probe_latency" = "start";
  #round = new Round(START_LIMIT, { inFlight: 0, nowMs: 0, kind: "start" });
  #refusals = new Refusals();
  /** The limit that proved right last, as it is measured now; null at the start. */
  #held: Level | null = null;
  #known = { batch: nothingKnown(), interactive: nothingKnown() };
  /** Whose answers it measures; null before the first one. */
  #lane: Lane | null = null;
  /** The latest answers in a row of the other lane. */
  #strangers = 0;
  #step = START_LIMIT;
  #patience = PATIENCE.min;
  #roundsHeld = 0;
  #heldSinceMs = 0;
  #isProbeNext = false;
  #probesInVain = 0;
  /** A climb that gained too little and is measured again, because one round may have been a bad one. */
  #doubted: Level | null = null;
  #inFlight = 1;
  #nowMs: number | null = null;
  #latencyMs = 0;

  constructor(bounds: ConcurrencyBounds) {
    this.#bounds = bounds;
    this.restart();
  }

  /** Always an integer within the bounds. */
  get limit(): number {
    return this.#limit;
  }

  get reason(): MoveReason {
    return this.#reason;
  }

  /** Forgets everything after an outage, and starts small again. */
  restart(): void {
    this.#refusals = new Refusals();
    this.#nowMs = null;
    this.#held = null;
    this.#doubted = null;
    this.#known = { batch: nothingKnown(), interactive: nothingKnown() };
    this.#lane = null;
    this.#phase = "start";
    this.#step = START_LIMIT;
    this.#move(START_LIMIT, "start");
  }

  get #answers(): Known {
    return this.#known[this.#lane ?? "batch"];
  }

  /**
   * Keeps what was learned, as far as it lies within the new bounds. A limit that only the former maximum kept from
   * growing climbs at once: nothing was learned above it.
   */
  setBounds(bounds: ConcurrencyBounds): void {
    const isFreed = this.#limit === this.#bounds.max && bounds.max > this.#limit;
    this.#bounds = bounds;
    if (isFreed) this.#climbFromHere();
    else if (this.#within(this.#limit) !== this.#limit) this.#hold(this.#limit, "configured");
  }

  /** Climbs as at the start, from the present limit. */
  #climbFromHere(): void {
    this.#phase = "start";
    this.#held = null;
    this.#doubted = null;
    this.#step = START_LIMIT;
    if (!this.#climb()) this.#beginRound();
  }

  /** Learns from a line, or from a refusal of any request. */
  note(sample: Sample): void {
    if (sample.signal !== "good" || this.#measures("batch")) this.#note(sample);
  }

  #note(sample: Sample): void {
    if (this.#bounds.min === this.#bounds.max) return;
    this.#inFlight = sample.inFlight;
    this.#nowMs = sample.endedAtMs;
    this.#round.note(sample);
    const { signal } = sample;
    if (this.#phase === "hold") this.#refusals.count(signal, this.#limit);
    if (signal === "overloaded" || signal === "timed_out") {
      this.#noteRefusal(sample, signal === "overloaded" ? "refused" : "timed_out");
      return;
    }
    const verdict = signal === "good" ? this.#refusals.noteAnswer(sample, this.#limit) : null;
    if (verdict !== null) this.#hold(verdict.limit, "refused");
    if (this.#round.isComplete) this.#endRound();
  }

  /**
   * Learns from an interactive answer. They differ so much in length that a target may look slow that is not. So they take
   * nothing away of the limit at the start, which only refusals do.
   */
  noteInteractive(sample: Sample): void {
    if (!this.#measures("interactive")) return;
    const least = Math.min(this.#held?.limit ?? this.#limit, this.#within(START_LIMIT));
    this.#note(sample);
    if (this.#limit >= least || this.#refusals.isAt(least)) return;
    this.#known.interactive = nothingKnown();
    this.#held = null;
    this.#hold(least, "start");
  }

  /** Returns whether an answer of the lane counts, and turns to the lane when it is time. */
  #measures(lane: Lane): boolean {
    this.#lane ??= lane;
    this.#strangers = lane === this.#lane ? 0 : this.#strangers + 1;
    if (this.#strangers === 0) return true;
    if (this.#strangers === TURN_AFTER) this.#turnTo(lane);
    return false;
  }

  /** Measures the limit anew, and takes back an experiment that the turn cuts short: nothing says that it was right. */
  #turnTo(lane: Lane): void {
    this.#lane = lane;
    this.#strangers = 0;
    if (this.#held === null) {
      this.#beginRound();
      return;
    }
    this.#hold(this.#held.limit, "turned");
    this.#patience = PATIENCE.min;
  }

  #noteRefusal(sample: Sample, reason: "refused" | "timed_out"): void {
    const isOurs = this.#phase === "climb" || this.#phase === "start";
    const proven = this.#phase === "climb" ? (this.#held?.limit ?? null) : null;
    const verdict = this.#refusals.note(sample, this.#limit, proven);
    if (verdict === null) return;
    let { limit } = verdict;
    if (verdict.isNew) {
      if (limit >= this.#limit && !isOurs) return;
      // Without a climb, other clients fill the target. They get what this one gives up.
      if (!isOurs) limit = Math.max(1, Math.round(limit * REFUSED));
      const { endedAtMs: nowMs, pauseMs } = sample;
      const cost = { nowMs, latencyMs: this.#latencyMs, pauseMs };
      this.#refusals.hold(Math.max(limit, proven ?? 0), cost);
    }
    this.#hold(limit, reason);
    this.#patience = PATIENCE.min;
  }

  #endRound(): void {
    const { level, latencyMs, isUsed, canGrow } = this.#round;
    this.#latencyMs = latencyMs;
    if (isUsed) this.#answers.fastestMs = Math.min(this.#answers.fastestMs, level.unitMs);
    if (!isUsed) this.#beginRound();
    else if (this.#phase === "hold") this.#goOnHolding(level, canGrow);
    else if (this.#phase === "probe_latency") this.#endProbe(level);
    else this.#goOnClimbing(level, canGrow);
  }

  #goOnClimbing(level: Level, canGrow: boolean): void {
    const before = this.#held;
    const isInDoubt = before !== null && lossOf(before, level) > 0;
    if (isInDoubt && this.#doubted === null) {
      this.#doubted = level;
      this.#beginRound();
      return;
    }
    const better = fasterOf(this.#doubted ?? level, level);
    this.#doubted = null;
    if (isInDoubt && lossOf(before, better) > 0) {
      const enough = Math.exp(-this.#answers.noise) * enoughFor(before, better);
      this.#hold(Math.max(before.limit, enough), "no_gain");
    } else if (!canGrow) this.#beginRound();
    else {
      this.#held = better;
      this.#step = Math.min(2 * this.#step, this.#limit);
      if (this.#isTooSlow(better) || !this.#climb()) this.#hold(this.#limit, this.#reason);
    }
  }

  #isTooSlow({ unitMs }: Level): boolean {
    return unitMs > MAX_SLOWDOWN * this.#answers.fastestMs;
  }

  /** Begins a climb; returns false when there is nowhere to go. */
  #climb(): boolean {
    const most = this.#refusals.mostAt(this.#nowMs ?? 0);
    const next = this.#within(Math.min(this.#limit + this.#step, most));
    if (next <= this.#limit) return false;
    if (this.#phase !== "start") this.#phase = "climb";
    this.#move(next, "climb");
    return true;
  }

  #hold(limit: number, reason: MoveReason): void {
    const isRight = areClose(limit, this.#held?.limit ?? 0);
    this.#patience = isRight ? Math.min(PATIENCE.max, 2 * this.#patience) : PATIENCE.min;
    this.#phase = "hold";
    this.#roundsHeld = 0;
    this.#heldSinceMs = this.#nowMs ?? 0;
    this.#doubted = null;
    this.#move(limit, reason);
    this.#step = this.#refusals.isAt(this.#limit)
      ? Math.max(1, STEP_AT_CEILING * Math.sqrt(this.#limit))
      : Math.max(1, STEP * this.#limit);
    this.#held = { limit: this.#limit, unitMs: 0 };
  }

  #goOnHolding(level: Level, canGrow: boolean): void {
    let held = level;
    if (this.#roundsHeld > 0 && this.#held !== null) {
      const change = Math.log(level.unitMs / this.#held.unitMs);
      this.#answers.noise += WEIGHT.noise * (Math.abs(change) - this.#answers.noise);
      const gain = Math.max(WEIGHT.latency, 1 / (this.#roundsHeld + 1));
      held = { ...level, unitMs: this.#held.unitMs * Math.exp(gain * change) };
    }
    this.#held = held;
    this.#roundsHeld++;
    if (!this.#isExperimentDue() || !this.#experiment(held, canGrow)) this.#beginRound();
  }

  #isExperimentDue(): boolean {
    if (this.#roundsHeld < this.#patience) return false;
    const heldMs = (this.#nowMs ?? 0) - this.#heldSinceMs;
    return this.#patience < PATIENCE.max || heldMs >= CALM_MS;
  }

  #experiment(held: Level, canGrow: boolean): boolean {
    const isTooSlow = this.#isTooSlow(held);
    // No request waits where a target refuses, so the probe would learn nothing.
    const isProbeDue = this.#isProbeNext && !this.#refusals.isAt(held.limit);
    if (isTooSlow || isProbeDue) {
      this.#isProbeNext = false;
      this.#phase = "probe_latency";
      const lower = this.#within(Math.floor(DOWN ** (1 + this.#probesInVain) * held.limit));
      if (lower < held.limit) {
        this.#move(lower, "probe_latency");
        return true;
      }
      this.#phase = "hold";
    }
    this.#isProbeNext = true;
    return canGrow && !isTooSlow && this.#climb();
  }

  #endProbe(lower: Level): void {
    const held = this.#held ?? lower;
    const isTooSlow = this.#isTooSlow(held);
    const gain = Math.log(held.unitMs / lower.unitMs);
    if (lossOf(lower, held) > this.#answers.noise) {
      this.#probesInVain = 0;
      this.#hold(enoughFor(lower, held), "latency_probed");
      // Fewer requests may be enough, too.
      this.#isProbeNext = true;
      return;
    }
    if (isTooSlow && gain > IN_VAIN + this.#answers.noise) {
      this.#probesInVain = 0;
      this.#hold(DOWN * held.limit, "slow");
      return;
    }
    this.#probesInVain = isTooSlow ? this.#probesInVain + 1 : 0;
    if (this.#probesInVain >= MAX_PROBES_IN_VAIN) {
      this.#probesInVain = 0;
      this.#answers.fastestMs = held.unitMs / MAX_SLOWDOWN;
    }
    this.#hold(held.limit, "latency_probed");
  }

  #move(limit: number, reason: MoveReason): void {
    const next = this.#within(limit);
    if (next !== this.#limit) this.#reason = reason;
    this.#limit = next;
    this.#beginRound();
  }

  #beginRound(): void {
    const inFlight = this.#inFlight - 1;
    const isHeld = this.#phase === "hold" && this.#roundsHeld > 0;
    const later = isHeld ? "held" : "moved";
    const kind = this.#phase === "start" ? "start" : later;
    this.#round = new Round(this.#limit, { inFlight, nowMs: this.#nowMs, kind });
  }

  #within(limit: number): number {
    return Math.min(this.#bounds.max, Math.max(this.#bounds.min, Math.round(limit)));
  }
}
