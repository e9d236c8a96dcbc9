/**
 * A circuit breaker decides whether a target may be asked now, and remembers why not. A target has one for all of its
 * requests (`capacity.ts`), and one for each kind of request in which it refuses the operator (`holds.ts`).
 *
 * ```
 *            enough failures in a row               backoff is over, one probe goes
 *   closed ──────────────────────────► open ──────────────────────────────────► half open
 *     ▲                                  ▲                                          │
 *     │                                  └── failure: open again, longer backoff ───┤
 *     └────────────────────────── a good answer ───────────────────────────────────┘
 * ```
 *
 * A failure that is certainly the target's own begins a *backoff*, which doubles with each one in a row. While the
 * circuit is closed the backoff is a preference: requests that have a choice go elsewhere. While it is open nothing
 * goes out before the backoff is over. A target that is down must cost no line an attempt, and must not be hammered
 * when it comes back.
 *
 * Failures have two weights. A target without a connection is *down*, and a few such failures in a row open the
 * circuit. As few answers that *refused* the operator do the same. Gateway errors and resets are *doubtful*, since a
 * line may cause them: they begin no backoff, and only many in a row open the circuit, more than a small batch of bad
 * lines makes. A larger one opens it. The circuit is *in doubt* after such failures: projects take turns at its probes
 * (`engine/dispatch/chunk-choice.ts`), and it does not stop interactive requests. A good answer to one closes it. After a
 * timeout it does stop them, since they would hang as well. A target that is *full* refuses many at once while it serves
 * the others. Such an answer has the lower weight, and only when the answers in flight together with the last good one are
 * overdue.
 *
 * The breaker must read neither clock nor dice: both are arguments. After M. Nygard, "Release It!" (2007), ch. 5.
 */
import type { Outcome } from "../../batch/outcome.ts";

export type Circuit = "closed" | "open" | "half_open";

/** The verdict of an attempt on its target. An attempt that batchd ended itself says `nothing`. */
export type Evidence = "good" | "down" | "refused" | "doubtful" | "full" | "nothing";

/** The time at which an attempt ran. */
export interface Ended {
  readonly startedAtMs: number;
  readonly nowMs: number;
  /** A number from 0 up to 1. */
  readonly random: number;
}

const WEIGHTS: Readonly<Record<Evidence, number>> = {
  good: 0,
  down: 10,
  refused: 10,
  doubtful: 1,
  full: 1,
  nothing: 0,
};
const OPENS_AT_WEIGHT = 50;
/** The number of failures in a row that cannot be chance. */
const FAILURES_IN_A_ROW = 3;
const BACKOFF = { firstMs: 500, maxMs: 30_000 };
/** The number of backoffs in a row after which the next is the longest. */
const LONGEST_BACKOFF = 6;
/** The spread of a backoff: several processes that lost the same target must not probe it at the same moment. */
const JITTER = 0.2;

export class CircuitBreaker<Failure extends Outcome = Outcome> {
  #circuit: Circuit = "closed";
  #weight = 0;
  /** The number of backoffs in a row, without a good answer between them. */
  #backoffCount = 0;
  #backoffUntilMs = Number.NEGATIVE_INFINITY;
  #openedAtMs = Number.NEGATIVE_INFINITY;
  #probedAtMs = 0;
  /** The time until which answers may come that were in flight together with the last good one. */
  #goodUntilMs = Number.NEGATIVE_INFINITY;
  /** The number of failures in a row, without a good answer between them. */
  #failureCount = 0;
  #lastFailure: Failure | null = null;
  /** Whether the latest failure here may be the fault of a line, and was no timeout. */
  #isDoubtful = false;
  /** Whether the others that have opened the circuit are in doubt; null where none has, or a failure here is newer. */
  #areOthersInDoubt: boolean | null = null;
  /** Whether another process probes the target, and this one waits for it. The circuit is open then. */
  #isFollowing = false;
  /** Whether the circuit is open because of attempts of this process. */
  #isOwn = false;
  #goodAtMs = Number.NEGATIVE_INFINITY;

  get circuit(): Circuit {
    return this.#circuit;
  }

  get isFollowing(): boolean {
    return this.#isFollowing;
  }

  /** Whether the circuit is open only because of what other processes have found, also while this one may probe. */
  get isOpenForOthers(): boolean {
    return this.#isFollowing || (this.#circuit === "open" && !this.#isOwn);
  }

  get isOwn(): boolean {
    return this.#isOwn;
  }

  /** Whether the circuit is not closed, and lines alone may be to blame for that, by all that is known. */
  get isInDoubt(): boolean {
    if (this.#circuit === "closed") return false;
    if (this.#areOthersInDoubt === null) return this.#isDoubtful;
    return this.#areOthersInDoubt && (!this.#isOwn || this.#isDoubtful);
  }

  /** Whether the same is true by the attempts of this process alone. */
  get isOwnInDoubt(): boolean {
    return this.#isOwn && this.#isDoubtful;
  }

  /** The instant of the latest good answer. */
  get goodAtMs(): number {
    return this.#goodAtMs;
  }

  /** Notes whether the other processes that have opened the circuit are in doubt; null where none has. */
  hear(areOthersInDoubt: boolean | null): void {
    this.#areOthersInDoubt = areOthersInDoubt;
  }

  /** Lets nothing out, because another process has found the target down and probes it. A probe under way may end. */
  follow(failure: Failure | null, untilMs: number): void {
    if (this.#circuit === "half_open") return;
    this.#circuit = "open";
    this.#isFollowing = true;
    this.#backoffUntilMs = untilMs;
    this.#lastFailure ??= failure;
    this.#failureCount = Math.max(this.#failureCount, FAILURES_IN_A_ROW);
  }

  /** Makes this process the one that probes: once at first, and then after the longest backoff. */
  lead(nowMs: number): void {
    this.#isFollowing = false;
    this.#backoffUntilMs = nowMs;
    this.#backoffCount = Math.max(this.#backoffCount, LONGEST_BACKOFF);
  }

  /** Closes the circuit, because the target serves other processes. */
  resume(): void {
    this.#forgetFailures();
    this.#backoffUntilMs = Number.NEGATIVE_INFINITY;
  }

  /** The latest failure, whatever came after it. */
  get lastFailure(): Failure | null {
    return this.#lastFailure;
  }

  /** Whether the latest attempts have failed, enough to open the circuit or not. */
  get isFailing(): boolean {
    return this.#failureCount >= FAILURES_IN_A_ROW;
  }

  /** The end of the latest backoff. While the circuit is open, the probe may go then. */
  get backoffUntilMs(): number {
    return this.#backoffUntilMs;
  }

  /** The instant at which the circuit opened last. */
  get openedAtMs(): number {
    return this.#openedAtMs;
  }

  /** Returns when an attempt may start. Infinity means that a probe is under way. */
  readyAtMs(): number {
    if (this.#circuit === "closed") return Number.NEGATIVE_INFINITY;
    const mayProbe = this.#circuit === "open" && !this.#isFollowing;
    return mayProbe ? this.#backoffUntilMs : Number.POSITIVE_INFINITY;
  }

  /** Lets an attempt start; returns true when it is the probe. One that goes out before its time is none. */
  pass(nowMs: number): boolean {
    if (this.#circuit !== "open" || this.readyAtMs() > nowMs) return false;
    this.#circuit = "half_open";
    this.#probedAtMs = nowMs;
    return true;
  }

  /**
   * Learns from an attempt; returns true when the state of the circuit has changed. `failure` is kept unless it was
   * none.
   */
  note(evidence: Evidence, ended: Ended, failure: Failure | null): boolean {
    const before = this.circuit;
    if (evidence === "good") this.#close(ended);
    else if (evidence === "nothing") this.#noteNothing(ended);
    else this.#noteFailure(evidence, ended, failure);
    return this.circuit !== before;
  }

  #close({ startedAtMs, nowMs }: Ended): void {
    this.#goodUntilMs = nowMs + (nowMs - startedAtMs);
    this.#goodAtMs = nowMs;
    this.#forgetFailures();
  }

  #forgetFailures(): void {
    this.#circuit = "closed";
    this.#isFollowing = false;
    this.#isOwn = false;
    this.#weight = 0;
    this.#backoffCount = 0;
    this.#failureCount = 0;
  }

  /** Lets the next probe go at once after a probe that proved nothing. */
  #noteNothing({ startedAtMs, nowMs }: Ended): void {
    if (!this.#isProbe(startedAtMs)) return;
    this.#circuit = "open";
    this.#backoffUntilMs = nowMs;
  }

  #noteFailure(evidence: Evidence, ended: Ended, failure: Failure | null): void {
    const { startedAtMs, nowMs } = ended;
    this.#failureCount++;
    this.#lastFailure = failure;
    this.#isDoubtful = evidence === "doubtful" && failure?.kind !== "timed_out";
    this.#areOthersInDoubt = null;
    if (this.#isProbe(startedAtMs)) this.#open(ended);
    // An attempt that started before the circuit opened proves nothing new.
    if (this.#circuit !== "closed" || startedAtMs < this.#openedAtMs) return;
    if (evidence !== "doubtful") this.#backOff(ended);
    if (evidence === "full" && nowMs <= this.#goodUntilMs) return;
    this.#weight += WEIGHTS[evidence];
    if (this.#weight >= OPENS_AT_WEIGHT) this.#open(ended);
  }

  #isProbe(startedAtMs: number): boolean {
    return this.#circuit === "half_open" && startedAtMs >= this.#probedAtMs;
  }

  #open(ended: Ended): void {
    this.#backOff(ended);
    this.#circuit = "open";
    this.#isOwn = true;
    this.#openedAtMs = ended.nowMs;
  }

  /** Begins a backoff. Requests that were in flight together fail together, and count as one backoff. */
  #backOff({ nowMs, random }: Ended): void {
    if (nowMs >= this.#backoffUntilMs || this.#backoffCount === 0) this.#backoffCount++;
    const ms = Math.min(BACKOFF.firstMs * 2 ** (this.#backoffCount - 1), BACKOFF.maxMs);
    const untilMs = nowMs + ms * (1 + JITTER * random);
    this.#backoffUntilMs = Math.max(this.#backoffUntilMs, untilMs);
  }
}
