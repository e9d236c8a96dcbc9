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
import type { Clock } from "../clock.ts";
import { Admission } from "./admission.ts";
import { acquireSlot } from "./choice.ts";
import type { Slot } from "./limiter.ts";
import { Need } from "./need.ts";
import { relayThrough } from "./relay.ts";
import {
  DEFAULT_RETRY_POLICY,
  decide,
  forgiven,
  type Next,
  NO_ATTEMPTS,
  type Tally,
} from "./retry.ts";
import type { Target } from "./target.ts";
import type { Relay, Route, SendSignals, UpstreamRequest } from "./upstream.ts";

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

export class TargetRoute implements Route {
  readonly key: string;
  readonly #targets: readonly Target[];
  readonly #clock: Clock;
  readonly #random: () => number;
  readonly #admission = new Admission();
  /** Lines between two attempts. */
  #waitingCount = 0;
  /** How many of them are not counted as taken on. A fraction is on its way to one more. */
  #setAsideCount = 0;

  constructor(key: string, { targets, clock, random }: RouteOptions) {
    this.key = key;
    this.#targets = targets;
    this.#clock = clock;
    this.#random = random;
    for (const { limiter } of targets) limiter.onLimits(this.#moveAdmission);
    this.#moveAdmission();
  }

  /** Nobody asks for it any more. Lines on their way may end here. */
  leave(): void {
    for (const { limiter } of this.#targets) limiter.offLimits(this.#moveAdmission);
  }

  get room(): number {
    return this.#admission.free;
  }

  get opensAtMs(): number {
    return Math.min(...this.#targets.map((target) => target.capacity.opensAtMs));
  }

  admit(stop: AbortSignal): boolean | Promise<boolean> {
    return this.#admission.admit(stop);
  }

  dismiss(): void {
    this.#admission.dismiss();
  }

  async send(request: UpstreamRequest, signals: SendSignals): Promise<Outcome> {
    const need = new Need("batch", request.body);
    let tally: Tally = NO_ATTEMPTS;
    let failed: Target | null = null;
    let failedAtMs = 0;
    while (!signals.stop.aborted && this.#clock.nowMs() < request.deadlineAtMs) {
      const askedAtMs = this.#clock.nowMs();
      const asked = this.#ask(need, failed, signals.stop);
      const slot: Slot<Target> | null = asked instanceof Promise ? await asked : asked;
      if (slot === null && this.#haveAllLeft) break;
      // Sent away by a target that has shut: perhaps to another one.
      if (slot === null) continue;
      const target: Target = slot.target;
      target.watch.waited("batch", this.#clock.nowMs() - askedAtMs);
      if (failed?.capacity.hasBeenDownSince(failedAtMs)) {
        tally = forgiven(tally, this.#clock.nowMs(), DEFAULT_RETRY_POLICY);
      }
      const outcome = await target.send(slot, request, signals.abort);
      this.#note(outcome, tally);
      const next = this.#decide(outcome, { tally, target, request });
      if (next.do === "record") return next.outcome;
      if (next.do === "give_back") break;
      target.watch.retried(outcome);
      const isTargetInTrouble = next.tally.overloads > tally.overloads;
      tally = next.tally;
      failed = target;
      failedAtMs = this.#clock.nowMs();
      // A target that is full or down says nothing about the others.
      if (isTargetInTrouble && this.#fitTargets(failed).length > 0) continue;
      await this.#wait(next.atMs, signals.stop);
    }
    return INTERRUPTED;
  }

  relay(request: UpstreamRequest, abort: AbortSignal): Promise<Relay> {
    const { clock, random } = { clock: this.#clock, random: this.#random };
    return relayThrough(this.#targets, request, { abort, clock, random });
  }

  /** At once where there is room. Null when `signal` aborts, or every target that would do has shut. */
  #ask(
    need: Need,
    failed: Target | null,
    signal: AbortSignal,
  ): Slot<Target> | null | Promise<Slot<Target> | null> {
    const choices = this.#choices(failed);
    const ifShut = choices.length < this.#targets.length ? "leave" : "wait";
    return acquireSlot(choices, { need, signal, random: this.#random, ifShut });
  }

  get #haveAllLeft(): boolean {
    return this.#targets.every(({ limiter }) => limiter.isClosed);
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

  readonly #moveAdmission = (): void => {
    const slotCount = this.#targets.reduce((sum, { limiter }) => sum + limiter.batchLimit, 0);
    const setAsideCount = Math.min(this.#waitingCount, this.#setAsideCount, MAX_SET_ASIDE_COUNT);
    this.#admission.setLimit(ADMITTED_PER_SLOT * slotCount + Math.floor(setAsideCount));
  };

  /**
   * Where a line may go: to targets in good condition, and not where it just failed, if that is possible. When all
   * are down, paused or outside their hours, to the first that comes back.
   */
  #choices(failed: Target | null): readonly Target[] {
    if (this.#targets.length === 1) return this.#targets;
    const fitOthers = this.#fitTargets(failed);
    if (fitOthers.length > 0) return fitOthers;
    const fit = this.#fitTargets(null);
    if (fit.length > 0) return fit;
    const nowMs = this.#clock.nowMs();
    const openOthers = this.#targets.filter(
      (target) => target !== failed && target.isOpenToLines(nowMs),
    );
    return openOthers.length > 0 ? openOthers : this.#targets;
  }

  #fitTargets(failed: Target | null): readonly Target[] {
    const nowMs = this.#clock.nowMs();
    return this.#targets.filter((target) => target !== failed && target.isFit(nowMs));
  }

  #decide(
    outcome: Outcome,
    { tally, target, request }: { tally: Tally; target: Target; request: UpstreamRequest },
  ): Next {
    const { deadlineAtMs } = request;
    const isTargetDown = target.capacity.circuit !== "closed";
    const moment = { nowMs: this.#clock.nowMs(), deadlineAtMs, random: this.#random() };
    return decide(outcome, { ...moment, tally, isTargetDown }, DEFAULT_RETRY_POLICY);
  }
}
