/**
 * The way of a line to an answer: admitted, a slot, an attempt, perhaps a wait, and again.
 *
 * A route takes on twice as many lines as its targets have slots, so that a freed slot finds a line ready. A
 * line that waits for its next attempt holds no slot. Nor does it count among those taken on, if the route
 * has given an answer since it began to wait: a few lines that are refused for ever must not keep the
 * others from their turn. While nothing but refusals comes back the targets are full or down: then a new
 * line is tried only now and then. After a failure the line goes to another target where there is one in good
 * condition, and waits for its slot rather than go back; when the target was full or down, without the wait
 * between attempts.
 */
import type { Outcome } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import { acquireSlot, Limiter, type Slot } from "./limiter.ts";
import { DEFAULT_RETRY_POLICY, decide, type Next, NO_ATTEMPTS, type Tally } from "./retry.ts";
import type { Target } from "./target.ts";
import type { Route, SendSignals, UpstreamRequest } from "./upstream.ts";

const ADMITTED_PER_SLOT = 2;
/** Waiting lines that are not counted, at the most: each of them goes on knocking. */
const MAX_SET_ASIDE_COUNT = 4_096;
/** So many lines have to be refused again before one more is tried. */
const REFUSALS_PER_TRIAL = 10;
const INTERRUPTED: Outcome = { kind: "interrupted" };

class Admission {
  readonly limiter: Limiter;

  constructor(limit: number) {
    this.limiter = new Limiter(limit);
  }
}

export interface RouteOptions {
  readonly targets: readonly Target[];
  readonly clock: Clock;
  /** From 0 up to 1. */
  readonly random: () => number;
}

export class TargetRoute implements Route {
  readonly key: string;
  readonly #targets: readonly Target[];
  readonly #clock: Clock;
  readonly #random: () => number;
  readonly #admission: readonly [Admission];
  readonly #admitted: Slot<Admission>[] = [];
  readonly #slotCount: number;
  /** Lines between two attempts. */
  #waitingCount = 0;
  /** How many of them are not counted as taken on. A fraction is on its way to one more. */
  #setAsideCount = 0;

  constructor(key: string, { targets, clock, random }: RouteOptions) {
    this.key = key;
    this.#targets = targets;
    this.#clock = clock;
    this.#random = random;
    this.#slotCount = targets.reduce((sum, target) => sum + target.limiter.limit, 0);
    this.#admission = [new Admission(ADMITTED_PER_SLOT * this.#slotCount)];
  }

  get room(): number {
    return this.#admission[0].limiter.free;
  }

  admit(stop: AbortSignal): boolean | Promise<boolean> {
    const slot = acquireSlot(this.#admission, stop);
    if (slot instanceof Promise) return slot.then((granted) => this.#admit(granted));
    return this.#admit(slot);
  }

  dismiss(): void {
    const slot = this.#admitted.pop();
    if (slot === undefined) throw new Error("a line was dismissed that had not been admitted");
    slot.release();
  }

  #admit(slot: Slot<Admission> | null): boolean {
    if (slot === null) return false;
    this.#admitted.push(slot);
    return true;
  }

  async send(request: UpstreamRequest, signals: SendSignals): Promise<Outcome> {
    let tally: Tally = NO_ATTEMPTS;
    let failed: Target | null = null;
    while (this.#isOpen(request, signals.stop)) {
      const slot: Slot<Target> | null = await acquireSlot(this.#choices(failed), signals.stop);
      if (slot === null) break;
      let outcome: Outcome;
      try {
        outcome = await this.#attempt(slot, request, signals);
      } finally {
        slot.release();
      }
      slot.target.health.note(outcome);
      this.#note(outcome, tally);
      const next = this.#decide(outcome, tally, request);
      if (next.do === "record") return next.outcome;
      if (next.do === "give_back") break;
      const isTargetInTrouble = next.tally.overloads > tally.overloads;
      tally = next.tally;
      failed = slot.target;
      // A target that is full or down says nothing about the others.
      if (isTargetInTrouble && this.#fitTargets(failed).length > 0) continue;
      await this.#wait(next.atMs, signals.stop);
    }
    return INTERRUPTED;
  }

  async #wait(untilMs: number, stop: AbortSignal): Promise<void> {
    this.#waitingCount++;
    this.#moveAdmission();
    await this.#clock.sleep(Math.max(0, untilMs - this.#clock.nowMs()), stop);
    this.#waitingCount--;
    this.#moveAdmission();
  }

  #note({ kind }: Outcome, { overloads }: Tally): void {
    const isRefusal = kind === "overloaded" || kind === "unreachable";
    if (!isRefusal && kind !== "interrupted") this.#setAsideCount = this.#waitingCount;
    else if (isRefusal && overloads > 0) this.#setAsideCount += 1 / REFUSALS_PER_TRIAL;
    this.#moveAdmission();
  }

  #moveAdmission(): void {
    const setAsideCount = Math.min(this.#waitingCount, this.#setAsideCount, MAX_SET_ASIDE_COUNT);
    const takenOn = ADMITTED_PER_SLOT * this.#slotCount;
    this.#admission[0].limiter.setLimit(takenOn + Math.floor(setAsideCount));
  }

  #isOpen(request: UpstreamRequest, stop: AbortSignal): boolean {
    return !stop.aborted && this.#clock.nowMs() < request.deadlineAtMs;
  }

  /** Where a line may go: to targets in good condition, and not where it just failed, if that is possible. */
  #choices(failed: Target | null): readonly Target[] {
    if (this.#targets.length === 1) return this.#targets;
    const fitOthers = this.#fitTargets(failed);
    if (fitOthers.length > 0) return fitOthers;
    const fit = this.#fitTargets(null);
    return fit.length > 0 ? fit : this.#targets.filter((target) => target !== failed);
  }

  #fitTargets(failed: Target | null): readonly Target[] {
    return this.#targets.filter((target) => target !== failed && !target.health.isResting);
  }

  #attempt(
    { target }: Slot<Target>,
    request: UpstreamRequest,
    { stop, abort }: SendSignals,
  ): Outcome | Promise<Outcome> {
    // The wait for the slot may have outlasted the window.
    return this.#isOpen(request, stop) ? target.send(request, abort) : INTERRUPTED;
  }

  #decide(outcome: Outcome, tally: Tally, { deadlineAtMs }: UpstreamRequest): Next {
    const moment = { tally, nowMs: this.#clock.nowMs(), deadlineAtMs, random: this.#random() };
    return decide(outcome, moment, DEFAULT_RETRY_POLICY);
  }
}
