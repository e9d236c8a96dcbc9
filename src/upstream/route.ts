/**
 * Takes a line to its answer: a slot, an attempt, perhaps a wait, and again.
 *
 * Lines and interactive requests wait for slots in one queue (`slot-queue.ts`). A line that waits for its next attempt
 * holds no slot and stands in no queue (`retry-waits.ts`), so lines that are refused for ever must not delay others.
 * After a failure the line goes to another target in good condition if there is one, and waits for a slot there rather
 * than go back. If the failed target was full or down, the line goes without the wait between attempts. The choice of
 * a target is made when a slot is free, so no line waits for a target that has closed meanwhile.
 */
import { FairQueue } from "../batch/fair-queue.ts";
import { worstOf } from "../batch/forecast.ts";
import { INTERRUPTED, isSuccess, type Outcome } from "../batch/outcome.ts";
import type { AllowedAnswer } from "../batch/token-estimate.ts";
import { type Clock, elapsedAt, sleep } from "../clock.ts";
import { HeldWaits } from "./held-waits.ts";
import { PastAttempts } from "./past-attempts.ts";
import { askable, proxyThrough } from "./proxy.ts";
import type {
  ProxyResult,
  RequestKind,
  SendSignals,
  Unavailability,
  UpstreamRequest,
} from "./request.ts";
import { decide, type Next, type Tally } from "./retry.ts";
import { RetryWaits } from "./retry-waits.ts";
import { type Slot, SlotRequest } from "./slot.ts";
import { SlotQueue } from "./slot-queue.ts";
import type { Target } from "./target.ts";
import { unavailabilityOf } from "./unavailability.ts";
import type { LineSender, Route } from "./upstream.ts";

/** A timer may ring a little before its time. */
const EARLY_MS = 5;
/** The pause of a line that may not use enough at the moment. */
const NO_ROOM_PAUSE_MS = 1_000;

export interface RouteOptions {
  readonly targets: readonly Target[];
  readonly clock: Clock;
  /** Draws a number from 0 up to 1. */
  readonly random: () => number;
}

/** The circumstances of an attempt that has ended, besides its outcome. */
interface Circumstances {
  readonly tally: Tally;
  readonly target: Target;
  /** The deadline as elapsed time. */
  readonly deadlineAtMs: number;
  readonly hasServedOthers: boolean;
}

/** Whether the failure is certainly the target's own, so that another target may do better at once. */
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
  readonly flows = new FairQueue();
  readonly #queue: SlotQueue<Target>;
  readonly #held: HeldWaits;
  readonly #retryWaits: RetryWaits;

  constructor(key: string, { targets, clock, random }: RouteOptions) {
    this.key = key;
    this.#targets = targets;
    this.#clock = clock;
    this.#random = random;
    this.#held = new HeldWaits(clock);
    const choices = (asking: SlotRequest<Target>, nowMs: number) =>
      asking.lane === "batch" ? this.#choices(asking, nowMs) : askable(targets, asking, nowMs);
    this.#retryWaits = new RetryWaits({
      clock,
      slotCount: () => this.slotCount,
      onRoom: () => this.#queue.recheck(),
    });
    this.#queue = new SlotQueue({
      targets,
      flows: this.flows,
      choices,
      clock,
      random,
      holdsNewLinesBack: () => this.#retryWaits.holdsBack,
    });
    for (const { holds } of targets) holds.onChange(this.#wakeHeld);
  }

  /** Closes the route, because another one replaces it. Lines on their way may end here. */
  close(): void {
    for (const { holds } of this.#targets) holds.offChange(this.#wakeHeld);
    this.#held.wake();
  }

  /** Sends the lines again at once that wait, because one of these targets ends its pause early. */
  retryAt(targets: ReadonlySet<Target>): void {
    if (this.#targets.some((target) => targets.has(target))) this.#retryWaits.wake();
  }

  get slotCount(): number {
    let count = 0;
    for (const { limiter } of this.#targets) count += limiter.batchLimit;
    return count;
  }

  answerTokensOf(allowed: AllowedAnswer): number {
    let tokens = 0;
    for (const target of this.#targets) tokens = Math.max(tokens, target.answerTokensOf(allowed));
    return tokens;
  }

  takeHadToWait(): boolean {
    return this.#queue.takeHadToWait();
  }

  get opensAtMs(): number {
    return Math.min(...this.#targets.map((target) => target.capacity.opensAtMs));
  }

  get isInDoubt(): boolean {
    return this.#targets.some(({ capacity }) => capacity.isInDoubt);
  }

  unavailabilityFor(kind: Pick<RequestKind, "project" | "model">): Unavailability | null {
    return worstOf(this.#targets.map((target) => target.unavailabilityFor(kind)));
  }

  endOfWork(startAtMs: number, workMs: number): number {
    return Math.min(...this.#targets.map(({ capacity }) => capacity.endOfWork(startAtMs, workMs)));
  }

  acquire(
    request: UpstreamRequest,
    sender: LineSender,
  ): Slot<Target> | null | Promise<Slot<Target> | null> {
    // A line that is held waits in no queue.
    if (this.#readyAtMs(request) > this.#clock.elapsedMs()) return null;
    return this.#queue.acquire(new SlotRequest("batch", request, sender), sender.stop);
  }

  held(kind: RequestKind, stop: AbortSignal): Promise<void> | null {
    const readyAtMs = this.#readyAtMs(kind);
    if (readyAtMs === Number.NEGATIVE_INFINITY) return null;
    // Lines that wait already must probe first.
    const hasProbe = this.#held.lineCountOf(kind) > 0;
    if (readyAtMs <= this.#clock.elapsedMs() && !hasProbe) return null;
    return this.#held.wait(hasProbe ? Number.POSITIVE_INFINITY : readyAtMs, stop);
  }

  async send(
    request: UpstreamRequest,
    signals: SendSignals,
    granted: Slot<Target> | null = null,
  ): Promise<Outcome> {
    const asking = granted?.request ?? new SlotRequest<Target>("batch", request);
    const past = new PastAttempts();
    let unused = granted;
    while (!signals.stop.aborted && this.#clock.nowMs() < request.deadlineAtMs) {
      const slot: Slot<Target> | null = unused ?? (await this.#nextSlot(asking, signals.stop));
      unused = null;
      asking.rank = Number.POSITIVE_INFINITY;
      if (slot === null && this.#areAllClosed) break;
      if (slot === null) continue;
      const { target } = slot;
      const taken = request.allowance?.take() ?? true;
      if (taken !== true && !(await this.#isAllowed(taken, slot, signals.stop))) continue;
      const startedAtMs = this.#clock.elapsedMs();
      if (!target.holds.pass(request, startedAtMs)) {
        target.decline(slot);
        continue;
      }
      target.telemetry.waited("batch", slot.waitedMs);
      past.forgiveIfDown(startedAtMs);
      const { tally } = past;
      signals.watch?.attemptBegins();
      const outcome = await target.send(slot, request, signals.abort);
      signals.watch?.attemptEnded();
      this.#retryWaits.note(outcome, tally);
      if (outcome.kind === "answered" && isSuccess(outcome)) return outcome;
      const attempt = { target, startedAtMs };
      const hasServedOthers = past.haveOthersBeenServed(attempt, { kind: request, outcome });
      const deadlineAtMs = elapsedAt(this.#clock, request.deadlineAtMs);
      const next = this.#decide(outcome, { tally, target, deadlineAtMs, hasServedOthers });
      if (next.do === "record") return next.outcome;
      if (next.do === "give_back") break;
      target.telemetry.retried(outcome);
      const endedAtMs = this.#clock.elapsedMs();
      past.add({ ...attempt, endedAtMs }, next.tally);
      asking.avoided = [target];
      const isTargetInTrouble =
        next.tally.overloads > tally.overloads && isBeyondDoubt(outcome, target);
      // A target that is full, down or refuses us says nothing about the others.
      if (isTargetInTrouble && this.#fitTargets(asking, endedAtMs).length > 0) continue;
      request.allowance?.giveBack();
      signals.watch?.retryBegins(unavailabilityOf(outcome));
      await this.#retryWaits.wait(next.atMs, signals.stop);
      signals.watch?.retryEnded();
      if (this.#clock.elapsedMs() + EARLY_MS >= deadlineAtMs) break;
    }
    if (unused !== null) unused.target.decline(unused);
    return INTERRUPTED;
  }

  proxy(request: UpstreamRequest, abort: AbortSignal): Promise<ProxyResult> {
    return proxyThrough(this.#targets, request, { queue: this.#queue, abort, clock: this.#clock });
  }

  /** Resolves to null after a wait for anything but a slot, when `stop` aborts, or when no target would do. */
  async #nextSlot(asking: SlotRequest<Target>, stop: AbortSignal): Promise<Slot<Target> | null> {
    if (this.#areAllClosed) return null;
    const { request } = asking;
    request.allowance?.giveBack();
    const readyAtMs = this.#readyAtMs(request);
    if (readyAtMs <= this.#clock.elapsedMs()) return this.#queue.acquire(asking, stop);
    const untilMs = Math.min(readyAtMs, elapsedAt(this.#clock, request.deadlineAtMs));
    await this.#held.waitAsLine(request, untilMs, stop);
    return null;
  }

  /** Resolves to false, after a pause and without the slot, when the line may not go out at the moment. */
  async #isAllowed(
    taken: Promise<boolean>,
    slot: Slot<Target>,
    stop: AbortSignal,
  ): Promise<boolean> {
    let isAllowed = false;
    try {
      isAllowed = (await taken) && !stop.aborted;
    } finally {
      if (!isAllowed) slot.target.decline(slot);
    }
    if (!isAllowed) await sleep(this.#clock, NO_ROOM_PAUSE_MS, stop);
    return isAllowed;
  }

  get #areAllClosed(): boolean {
    return this.#targets.every(({ limiter }) => limiter.isClosed);
  }

  /** Returns when the first of the targets may be asked, as far as holds decide it. */
  #readyAtMs(kind: RequestKind): number {
    let readyAtMs = Number.POSITIVE_INFINITY;
    for (const { holds, limiter } of this.#targets) {
      if (!limiter.isClosed) readyAtMs = Math.min(readyAtMs, holds.readyAtMs(kind));
    }
    return readyAtMs;
  }

  readonly #wakeHeld = (): void => this.#held.wake();

  /**
   * Returns the targets to which a request may go: those in good condition where it has not just failed, if there are
   * any. When all are down, paused or outside their hours, it may go to the first that comes back.
   */
  #choices(asking: SlotRequest<Target>, nowMs: number): readonly Target[] {
    const [only] = this.#targets;
    if (this.#targets.length === 1) return only?.limiter.isClosed === true ? [] : this.#targets;
    const fitOthers = this.#fitTargets(asking, nowMs);
    if (fitOthers.length > 0) return fitOthers;
    const { request, avoided } = asking;
    const willing = this.#targets.filter(
      ({ holds, limiter }) => !limiter.isClosed && holds.readyAtMs(request) <= nowMs,
    );
    const fit = willing.filter((target) => target.isFit(request, nowMs));
    if (fit.length > 0) return fit;
    const openOthers = willing.filter(
      (target) => !avoided.includes(target) && target.isOpenToLines(nowMs),
    );
    return openOthers.length > 0 ? openOthers : willing;
  }

  /** Returns the targets in good condition at which the request has not just failed. */
  #fitTargets({ request, avoided }: SlotRequest<Target>, nowMs: number): readonly Target[] {
    return this.#targets.filter(
      (target) => !avoided.includes(target) && target.isFit(request, nowMs),
    );
  }

  #decide(outcome: Outcome, { tally, target, deadlineAtMs, hasServedOthers }: Circumstances): Next {
    const isTargetDown = target.capacity.circuit !== "closed";
    const hasOtherTargets = this.#targets.length > 1;
    const moment = { nowMs: this.#clock.elapsedMs(), deadlineAtMs, random: this.#random() };
    return decide(outcome, { ...moment, tally, isTargetDown, hasServedOthers, hasOtherTargets });
  }
}
