/**
 * The way of a line to an answer: admitted, a slot, an attempt, perhaps a wait, and again.
 *
 * A route takes on twice as many lines as its targets have slots, so that a freed slot finds a line ready. A
 * line that waits for its next attempt holds no slot. Nor does it count among those taken on, if the route
 * has given an answer since it began to wait: a few lines that are refused for ever must not keep the
 * others from their turn. While nothing but refusals comes back the targets are full or down: then a new
 * line is tried only now and then. After a failure the line goes to another target where there is one in good
 * condition, and waits for its slot rather than go back; when the target was full or down, without the wait
 * between attempts. When a target shuts for a while, those who wait for it alone look around again.
 */
import type { Outcome } from "../batch/outcome.ts";
import { type Clock, elapsedAt, sleep } from "../clock.ts";
import { Admission } from "./admission.ts";
import { HeldWaits } from "./held-waits.ts";
import type { Slot } from "./limiter.ts";
import { acquireSlot } from "./load-balancer.ts";
import { proxyThrough } from "./proxy.ts";
import { Need } from "./reservation.ts";
import {
  DEFAULT_RETRY_POLICY,
  decide,
  forgiven,
  type Next,
  NO_ATTEMPTS,
  type Tally,
} from "./retry.ts";
import type { Target } from "./target.ts";
import { worstOf } from "./unavailability.ts";
import type {
  ProxyResult,
  RequestKind,
  Route,
  SendSignals,
  Unavailability,
  UpstreamRequest,
} from "./upstream.ts";

const ADMITTED_PER_SLOT = 2;
/** Waiting lines that are not counted, at the most: each of them goes on knocking. */
const MAX_SET_ASIDE_COUNT = 4_096;
/** So many lines have to be refused again before one more is tried. */
const REFUSALS_PER_TRIAL = 3;
const INTERRUPTED: Outcome = { kind: "interrupted" };

export interface RouteOptions {
  readonly targets: readonly Target[];
  readonly clock: Clock;
  /** From 0 up to 1. */
  readonly random: () => number;
}

/** What a line asks for a slot with. */
interface Asking {
  readonly need: Need;
  readonly failed: Target | null;
  readonly request: UpstreamRequest;
}

/** What is known after an attempt of a line, besides its outcome. */
interface Attempted {
  readonly tally: Tally;
  readonly target: Target;
  /** As elapsed time. */
  readonly deadlineAtMs: number;
  readonly hasServedOthers: boolean;
}

/** Whether it is the trouble of this target, and another one may do better at once. */
const isBeyondDoubt = ({ kind }: Outcome, { capacity }: Target) =>
  kind === "overloaded" ||
  kind === "unreachable" ||
  kind === "refused" ||
  capacity.circuit !== "closed";

export class TargetRoute implements Route {
  readonly key: string;
  readonly #targets: readonly Target[];
  readonly #clock: Clock;
  readonly #random: () => number;
  readonly #admission = new Admission();
  readonly #held: HeldWaits;
  /** Lines between two attempts. */
  #waitingCount = 0;
  /** How many of them are not counted as taken on. A fraction is on its way to one more. */
  #setAsideCount = 0;

  constructor(key: string, { targets, clock, random }: RouteOptions) {
    this.key = key;
    this.#targets = targets;
    this.#clock = clock;
    this.#random = random;
    this.#held = new HeldWaits(clock);
    for (const { limiter, holds } of targets) {
      limiter.onLimits(this.#moveAdmission);
      holds.onChange(this.#wakeHeld);
    }
    this.#moveAdmission();
  }

  /** Nobody asks for it any more. Lines on their way may end here. */
  leave(): void {
    for (const { limiter, holds } of this.#targets) {
      limiter.offLimits(this.#moveAdmission);
      holds.offChange(this.#wakeHeld);
    }
    this.#held.wake();
  }

  get room(): number {
    return this.#admission.free;
  }

  get opensAtMs(): number {
    return Math.min(...this.#targets.map((target) => target.capacity.opensAtMs));
  }

  unavailabilityFor(kind: Pick<RequestKind, "project" | "model">): Unavailability | null {
    return worstOf(this.#targets.map((target) => target.unavailabilityFor(kind)));
  }

  endOfWork(startAtMs: number, workMs: number): number {
    return Math.min(...this.#targets.map(({ capacity }) => capacity.endOfWork(startAtMs, workMs)));
  }

  admit(stop: AbortSignal): boolean | Promise<boolean> {
    return this.#admission.admit(stop);
  }

  dismiss(): void {
    this.#admission.dismiss();
  }

  held(kind: RequestKind, stop: AbortSignal): Promise<void> | null {
    const readyAtMs = this.#readyAtMs(kind);
    if (readyAtMs === Number.NEGATIVE_INFINITY) return null;
    // Lines that wait already are to probe first.
    const hasProbe = this.#held.lineCountOf(kind) > 0;
    if (readyAtMs <= this.#clock.elapsedMs() && !hasProbe) return null;
    return this.#held.wait(hasProbe ? Number.POSITIVE_INFINITY : readyAtMs, stop);
  }

  async send(request: UpstreamRequest, signals: SendSignals): Promise<Outcome> {
    const need = new Need("batch", request.body);
    let tally: Tally = NO_ATTEMPTS;
    let failed: Target | null = null;
    let failedAtMs = 0;
    let failedStartAtMs = 0;
    /** When its first attempt started that was refused. */
    let refusedStartAtMs: number | null = null;
    while (!signals.stop.aborted && this.#clock.nowMs() < request.deadlineAtMs) {
      const askedAtMs = this.#clock.elapsedMs();
      const readyAtMs = this.#readyAtMs(request);
      if (readyAtMs > askedAtMs) {
        await this.#waitHeld(request, readyAtMs, signals.stop);
        continue;
      }
      const asked = this.#ask({ need, failed, request }, signals.stop);
      const slot: Slot<Target> | null = asked instanceof Promise ? await asked : asked;
      if (slot === null && this.#haveAllLeft) break;
      // Sent away by a target that has shut: perhaps to another one.
      if (slot === null) continue;
      const target: Target = slot.target;
      const startAtMs = this.#clock.elapsedMs();
      if (!target.holds.pass(request, startAtMs)) {
        target.decline(slot);
        continue;
      }
      target.telemetry.waited("batch", this.#clock.elapsedMs() - askedAtMs);
      if (failed?.capacity.hasBeenDownSince(failedAtMs)) {
        tally = forgiven(tally, this.#clock.elapsedMs(), DEFAULT_RETRY_POLICY);
      }
      const outcome = await target.send(slot, request, signals.abort);
      this.#note(outcome, tally);
      if (outcome.kind === "refused") refusedStartAtMs ??= startAtMs;
      const sinceMs = outcome.kind === "refused" ? (refusedStartAtMs ?? startAtMs) : startAtMs;
      const attempt = { kind: request, outcome };
      const hasServedOthers =
        target.holds.hasServedSince(sinceMs, attempt) ||
        (outcome.kind !== "refused" &&
          failed?.holds.hasServedSince(failedStartAtMs, attempt) === true);
      const deadlineAtMs = elapsedAt(this.#clock, request.deadlineAtMs);
      const next = this.#decide(outcome, { tally, target, deadlineAtMs, hasServedOthers });
      if (next.do === "record") return next.outcome;
      if (next.do === "give_back") break;
      target.telemetry.retried(outcome);
      const isTargetInTrouble =
        next.tally.overloads > tally.overloads && isBeyondDoubt(outcome, target);
      tally = next.tally;
      failed = target;
      failedAtMs = this.#clock.elapsedMs();
      failedStartAtMs = startAtMs;
      // A target that is full, down or refuses us says nothing about the others.
      if (isTargetInTrouble && this.#fitTargets(failed, request).length > 0) continue;
      await this.#wait(next.atMs, signals.stop);
      // A timer may ring a little before its time.
      if (next.atMs >= deadlineAtMs) break;
    }
    return INTERRUPTED;
  }

  proxy(request: UpstreamRequest, abort: AbortSignal): Promise<ProxyResult> {
    const { clock, random } = { clock: this.#clock, random: this.#random };
    return proxyThrough(this.#targets, request, { abort, clock, random });
  }

  /** At once where there is room. Null when `signal` aborts, or every target that would do has shut. */
  #ask(
    { need, failed, request }: Asking,
    signal: AbortSignal,
  ): Slot<Target> | null | Promise<Slot<Target> | null> {
    const choices = this.#choices(failed, request);
    const ifShut = choices.length < this.#targets.length ? "leave" : "wait";
    return acquireSlot(choices, { need, signal, random: this.#random, ifShut });
  }

  get #haveAllLeft(): boolean {
    return this.#targets.every(({ limiter }) => limiter.isClosed);
  }

  /** When the first of the targets may be asked, as far as holds decide it. */
  #readyAtMs(kind: RequestKind): number {
    let readyAtMs = Number.POSITIVE_INFINITY;
    for (const { holds } of this.#targets) readyAtMs = Math.min(readyAtMs, holds.readyAtMs(kind));
    return readyAtMs;
  }

  /** Such a line takes the place of nobody: lines of other kinds may go. */
  async #waitHeld(request: UpstreamRequest, readyAtMs: number, stop: AbortSignal): Promise<void> {
    const untilMs = Math.min(readyAtMs, elapsedAt(this.#clock, request.deadlineAtMs));
    const waited = this.#held.waitAsLine(request, untilMs, stop);
    this.#moveAdmission();
    await waited;
    this.#moveAdmission();
  }

  readonly #wakeHeld = (): void => this.#held.wake();

  async #wait(untilMs: number, stop: AbortSignal): Promise<void> {
    this.#waitingCount++;
    this.#moveAdmission();
    await sleep(this.#clock, Math.max(0, untilMs - this.#clock.elapsedMs()), stop);
    this.#waitingCount--;
    this.#moveAdmission();
  }

  #note({ kind }: Outcome, { overloads }: Tally): void {
    const isRefusal = kind === "overloaded" || kind === "unreachable" || kind === "refused";
    if (!isRefusal && kind !== "interrupted") this.#setAsideCount = this.#waitingCount;
    else if (isRefusal && overloads > 0) this.#setAsideCount += 1 / REFUSALS_PER_TRIAL;
    this.#moveAdmission();
  }

  readonly #moveAdmission = (): void => {
    const slotCount = this.#targets.reduce((sum, { limiter }) => sum + limiter.batchLimit, 0);
    const setAsideCount = Math.min(this.#waitingCount, this.#setAsideCount, MAX_SET_ASIDE_COUNT);
    const notCounted = Math.floor(setAsideCount) + this.#held.lineCount;
    this.#admission.setLimit(ADMITTED_PER_SLOT * slotCount + notCounted);
  };

  /**
   * Where a line may go: to targets in good condition, and not where it just failed, if that is possible. When all
   * are down, paused or outside their hours, to the first that comes back.
   */
  #choices(failed: Target | null, kind: RequestKind): readonly Target[] {
    if (this.#targets.length === 1) return this.#targets;
    const fitOthers = this.#fitTargets(failed, kind);
    if (fitOthers.length > 0) return fitOthers;
    const fit = this.#fitTargets(null, kind);
    if (fit.length > 0) return fit;
    const nowMs = this.#clock.elapsedMs();
    const willing = this.#targets.filter(({ holds }) => holds.readyAtMs(kind) <= nowMs);
    const openOthers = willing.filter((target) => target !== failed && target.isOpenToLines(nowMs));
    return openOthers.length > 0 ? openOthers : willing;
  }

  #fitTargets(failed: Target | null, kind: RequestKind): readonly Target[] {
    const nowMs = this.#clock.elapsedMs();
    return this.#targets.filter((target) => target !== failed && target.isFit(kind, nowMs));
  }

  #decide(outcome: Outcome, { tally, target, deadlineAtMs, hasServedOthers }: Attempted): Next {
    const isTargetDown = target.capacity.circuit !== "closed";
    const moment = { nowMs: this.#clock.elapsedMs(), deadlineAtMs, random: this.#random() };
    return decide(
      outcome,
      { ...moment, tally, isTargetDown, hasServedOthers },
      DEFAULT_RETRY_POLICY,
    );
  }
}
