/**
 * Decides how much a target can take at this moment, from five sources:
 *
 * | | decides | learns from |
 * |---|---|---|
 * | `concurrency.ts` | requests in flight, within the operator's bounds | finished work and refusals |
 * | `schedule-follower.ts` | how many of them may be lines of batches | the time of day |
 * | `quota.ts` | when the next one may go, by requests and tokens a minute | `x-ratelimit-*`, usage |
 * | `breaker.ts` | whether any may go | failures in a row |
 * | the pause | nothing before its end | `Retry-After`, which is obeyed for the target as a whole |
 *
 * The policies are pure; this file gives them the clock, the random numbers and the slots of the limiter. The
 * schedule goes by dates, everything else by elapsed time.
 */
import type { Outcome } from "../../batch/outcome.ts";
import type { SlotShare } from "../../batch/slot-share.ts";
import type { Clock } from "../../clock.ts";
import type { UpstreamConfig } from "../../config/upstreams.ts";
import type { TurnBudget } from "../../resources/turn-budget.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Attempted } from "../exchange/attempt.ts";
import type { RateLimitHints } from "../exchange/rate-limits.ts";
import { AdaptiveConcurrency } from "./adaptive/concurrency.ts";
import { CircuitBreaker } from "./breaker.ts";
import { evidenceOf, signalOf, usedTokens, workOf } from "./evidence.ts";
import { type Gate, type Lane, Limiter, type SlotRequest } from "./limiter.ts";
import { OwnLimits } from "./own-limits.ts";
import { isAboutRate, Quota, type Reservation } from "./rate/quota.ts";
import { ScheduleFollower } from "./schedule-follower.ts";

export interface CapacityOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** A number from 0 up to 1. */
  readonly random: () => number;
  /** The callback for a circuit that opens or closes: other replicas are to know. */
  readonly onCircuitChanged: () => void;
  /** All targets share it. */
  readonly turn: TurnBudget;
}

/** Interactive answers count while lines are fewer than this part of the requests in flight. */
const FEW_LINES = 1 / 2;

/** The facts with which an ended attempt went out. */
interface Passed {
  readonly request: { readonly lane: Lane };
  readonly reservation: Reservation | null;
}

export class Capacity implements Gate {
  readonly limiter: Limiter;
  readonly #name: string;
  readonly #options: CapacityOptions;
  readonly #concurrency: AdaptiveConcurrency;
  readonly #quota: Quota;
  readonly #breaker = new CircuitBreaker();
  readonly #schedule: ScheduleFollower;
  readonly #own: OwnLimits;
  #pausedUntilMs = Number.NEGATIVE_INFINITY;
  /** The answer that asked for the pause. */
  #pausedFor: Outcome | null = null;
  /** The requests without an outcome, in the order of their start. */
  readonly #started = new Set<object>();

  constructor(config: UpstreamConfig, options: CapacityOptions) {
    this.#name = config.name;
    this.#options = options;
    this.#own = new OwnLimits(config);
    this.#concurrency = new AdaptiveConcurrency(this.#own.bounds);
    this.#quota = new Quota(this.#own.quota);
    this.limiter = new Limiter({ gate: this, clock: options.clock, turn: options.turn });
    this.limiter.setBatchShare(config.batch_share);
    this.#schedule = new ScheduleFollower(options.clock, () => this.#setLimits());
    this.#follow(config);
  }

  /** Takes other limits from now on, and keeps what was learned. */
  reconfigure(config: UpstreamConfig): void {
    this.#own.reconfigure(config);
    this.#concurrency.setBounds(this.#own.bounds);
    this.#quota.setLimits(this.#own.quota);
    this.limiter.setBatchShare(config.batch_share);
    this.#follow(config);
    // A higher quota frees lines that wait for the former one.
    this.limiter.recheck();
  }

  /** Takes a part of the configured limits, because other replicas have the rest. */
  setShare(share: Pick<SlotShare, "slotCount" | "fraction">): void {
    const isOther = this.#own.setShare(share);
    if (isOther) this.#quota.setLimits(this.#own.quota);
    // The date of the store, by which windows go, was read with the shares.
    this.#setLimits();
    if (isOther) this.limiter.recheck();
  }

  get slotCount(): number {
    return this.#own.slotCount;
  }

  /** The slots of all replicas that are kept free for interactive requests. */
  get reserve(): number {
    return this.#own.reserve;
  }

  /** Whether other replicas have the whole target at the moment. */
  get isElsewhere(): boolean {
    return this.slotCount === 0;
  }

  /** The circuit breaker of the whole target. */
  get breaker(): CircuitBreaker {
    return this.#breaker;
  }

  /** Lets requests wait or go after the circuit has changed because of another replica. */
  followedCircuit(): void {
    if (this.circuit === "closed") this.#concurrency.restart();
    this.#recordCircuit();
    this.#setLimits();
    if (!this.isOpen(this.#options.clock.elapsedMs())) this.limiter.redirect();
    this.limiter.recheck();
  }

  get circuit(): CircuitBreaker["circuit"] {
    return this.#breaker.circuit;
  }

  /** Requests that have a choice go elsewhere until then. */
  get backoffUntilMs(): number {
    return this.#breaker.backoffUntilMs;
  }

  /**
   * The failure for which the target takes nothing now, or the latest of several in a row; null while it answers.
   */
  get failure(): Outcome | null {
    const { backAtMs } = this;
    const isAway = backAtMs > this.#options.clock.elapsedMs();
    // Requests that were in flight as the pause began may have failed in another way since.
    if (isAway && backAtMs === this.#pausedUntilMs) return this.#pausedFor;
    return isAway || this.#breaker.isFailing ? this.#breaker.lastFailure : null;
  }

  /** Whether the target has been found down at that instant or since. */
  hasBeenDownSince(atMs: number): boolean {
    return this.#breaker.openedAtMs >= atMs;
  }

  /** Whether the target may be asked, also to find out whether it works again. */
  isOpen(nowMs: number, lane: Lane = "batch"): boolean {
    return !this.limiter.isClosed && this.openAtMs(lane) <= nowMs;
  }

  /** The date at which the target may take lines of batches again; one that has passed when it does. */
  get opensAtMs(): number {
    const { clock } = this.#options;
    const nowMs = clock.nowMs();
    const backInMs = this.backAtMs - clock.elapsedMs();
    const scheduledAtMs = this.#schedule.opensAtMs(nowMs);
    return backInMs > 0 ? Math.max(nowMs + backInMs, scheduledAtMs) : scheduledAtMs;
  }

  /** Whether lines alone may be to blame for what keeps others from the target now. */
  get isInDoubt(): boolean {
    const nowMs = this.#options.clock.nowMs();
    return this.#breaker.isInDoubt && this.#schedule.opensAtMs(nowMs) <= nowMs;
  }

  /** Returns when so much work is done that starts then, including the hours in which the target takes no lines. */
  endOfWork(startAtMs: number, workMs: number): number {
    return this.#schedule.endOfWork(startAtMs, workMs);
  }

  /** Describes the rates and the hours, for people. */
  get figures() {
    const { requests, tokens } = this.#quota.report(this.#options.clock.elapsedMs());
    const configured = this.#own.ratesOfAll;
    return {
      requestRate: requests && { configured: configured.requests, ...requests },
      tokenRate: tokens && { configured: configured.tokens, ...tokens },
      hours: this.#schedule.hours,
    };
  }

  /** The instant at which the target may be asked again at all; one that has passed when it may. */
  get backAtMs(): number {
    return Math.max(this.#pausedUntilMs, this.circuit === "open" ? this.backoffUntilMs : 0);
  }

  openAtMs(lane: Lane): number {
    if (lane === "interactive" && this.#breaker.isInDoubt) return this.#pausedUntilMs;
    return Math.max(this.#pausedUntilMs, this.#breaker.readyAtMs());
  }

  readyAtMs(request: SlotRequest, nowMs: number): number {
    const openAtMs = this.openAtMs(request.lane);
    if (!this.#quota.isLimited) return openAtMs;
    return Math.max(openAtMs, this.#quota.readyAtMs(this.#tokensOf(request), nowMs));
  }

  /** Returns the cost in tokens where those are limited; otherwise every request costs the same. */
  costOf(request: SlotRequest): number {
    return this.#quota.needsTokens ? request.tokens : 1;
  }

  pass(request: SlotRequest, nowMs: number): Reservation | null {
    this.#started.add(request);
    if (this.#breaker.pass(nowMs)) this.#recordCircuit();
    return this.#quota.isLimited ? this.#quota.take(this.#tokensOf(request), nowMs) : null;
  }

  /** Learns from an attempt that has ended, before its slot is released. */
  settle(
    { request, reservation }: Passed,
    startedAtMs: number,
    { outcome, hints }: Attempted,
  ): void {
    const nowMs = this.#options.clock.elapsedMs();
    const isRefusedForRate =
      outcome.kind === "overloaded" && this.#isAboutRate(outcome.status, hints);
    if (hints !== null || reservation !== null) {
      const result = { reservation, usedTokens: usedTokens(outcome), hints };
      this.#quota.settle({ ...result, isRefused: isRefusedForRate }, nowMs);
    }
    const wasInDoubt = this.#breaker.isInDoubt;
    const hasTurned = this.#noteOutcome(outcome, startedAtMs, nowMs);
    const isDoubtOver = wasInDoubt && !this.#breaker.isInDoubt;
    const hasPaused = this.#pauseIfAsked(outcome, nowMs);
    const signal = isRefusedForRate ? null : signalOf(outcome, request.lane);
    if (signal !== null) {
      const inFlight = this.#usedSlots;
      const work = workOf(outcome);
      const pauseMs = outcome.kind === "overloaded" ? (outcome.retryAfterMs ?? 0) : 0;
      const ahead = signal === "overloaded" ? this.#aheadOf(request) : 0;
      const sample = { startedAtMs, endedAtMs: nowMs, signal, work, inFlight, ahead, pauseMs };
      this.#concurrency.note(sample);
    }
    this.#started.delete(request);
    this.#setLimits();
    if ((hasTurned || isDoubtOver || hasPaused) && !this.isOpen(nowMs)) this.limiter.redirect();
  }

  /**
   * Learns from an interactive answer that has come to its end, before its slot is released. Lines teach more, as most of a
   * batch are alike, so it counts only while they are few. Otherwise a target that gets interactive requests alone would
   * take sixteen at a time for ever, and fewer after each refusal.
   */
  noteWhole(startedAtMs: number, outcome: Outcome): void {
    // Slots that are reserved for interactive requests are free for them.
    const { inFlight: ofLanes, totalInFlight: inFlight } = this.limiter;
    const signal = signalOf(outcome, "batch");
    if (ofLanes.batch >= FEW_LINES * inFlight || signal !== "good") return;
    const ended = { startedAtMs, endedAtMs: this.#options.clock.elapsedMs(), signal };
    this.#concurrency.noteInteractive({ ...ended, work: 1, inFlight, ahead: 0, pauseMs: 0 });
    this.#setLimits();
  }

  /** Returns true when the state of the circuit has changed. */
  #noteOutcome(outcome: Outcome, startedAtMs: number, nowMs: number): boolean {
    const ended = { startedAtMs, nowMs, random: this.#options.random() };
    if (!this.#breaker.note(evidenceOf(outcome), ended, outcome)) return false;
    if (this.circuit === "closed") this.#concurrency.restart();
    this.#recordCircuit();
    if (this.circuit !== "half_open") this.#options.onCircuitChanged();
    return true;
  }

  /** Returns true when a pause begins. */
  #pauseIfAsked(outcome: Outcome, nowMs: number): boolean {
    if (outcome.kind !== "overloaded" || outcome.retryAfterMs === null) return false;
    const wasPaused = this.#pausedUntilMs > nowMs;
    const untilMs = nowMs + outcome.retryAfterMs;
    if (untilMs > this.#pausedUntilMs) {
      this.#pausedUntilMs = untilMs;
      this.#pausedFor = outcome;
    }
    return !wasPaused;
  }

  /** Whether the target has asked for a pause that is not over. */
  get isPaused(): boolean {
    return this.#pausedUntilMs > this.#options.clock.elapsedMs();
  }

  /** Ends the pause, and forgets how much the target took: the cause of both may be mended. */
  endPause(): void {
    if (!this.isPaused) return;
    this.#pausedUntilMs = Number.NEGATIVE_INFINITY;
    this.#concurrency.restart();
    this.#setLimits();
    this.limiter.recheck();
  }

  close(): void {
    this.#schedule.close();
    this.limiter.close();
  }

  /** A bare 429 from a target with a known limit counts as rate limiting. */
  #isAboutRate(status: number, hints: RateLimitHints | null): boolean {
    if (hints === null) return status === 429 && this.#quota.isLimited;
    return isAboutRate(status, hints);
  }

  /** The slots in use, reserved ones included: as long as lines may have no more, the limit is what holds them. */
  get #usedSlots(): number {
    const { limit, totalInFlight, inFlight } = this.limiter;
    return Math.max(totalInFlight, inFlight.batch + limit - this.#own.slotsForLines(limit));
  }

  /** The slots in use by requests that started before this one; all slots that are not requests' count as such. */
  #aheadOf(request: object): number {
    let count = this.#usedSlots - this.#started.size;
    for (const each of this.#started) {
      if (each === request) break;
      count++;
    }
    return count;
  }

  #tokensOf(request: SlotRequest): number {
    return this.#quota.needsTokens ? request.tokens : 0;
  }

  #setLimits(): void {
    const limit = Math.min(this.#concurrency.limit, this.slotCount);
    const scheduled = this.#schedule.concurrency;
    const inWindow = scheduled === null ? limit : this.#own.slotsInWindow(scheduled);
    const batchLimit = Math.min(this.#own.slotsForLines(limit), inWindow);
    const from = this.limiter.limit;
    if (limit !== from || batchLimit !== this.limiter.batchLimit) {
      this.limiter.setLimits(limit, batchLimit);
      if (batchLimit === 0) this.limiter.redirect();
      const reason = limit < this.#concurrency.limit ? "share" : this.#concurrency.reason;
      const target = this.#name;
      if (limit !== from) {
        this.#options.log.debug({ target, from, to: limit, reason }, "target.limit_changed");
      }
    }
  }

  /** Sets the limits, now and whenever a window begins or ends. */
  #follow({ schedule, max_concurrency }: UpstreamConfig): void {
    this.#schedule.follow(schedule, max_concurrency);
    this.#setLimits();
  }

  #recordCircuit(): void {
    const { log, clock } = this.#options;
    const { circuit, backoffUntilMs } = this.#breaker;
    const target = this.#name;
    if (circuit === "open") {
      log.warn(
        { target, retry_in_ms: Math.round(backoffUntilMs - clock.elapsedMs()) },
        "target.circuit_opened",
      );
    } else if (circuit === "half_open") log.debug({ target }, "target.circuit_half_open");
    else log.info({ target }, "target.circuit_closed");
  }
}
