/**
 * The one queue in which the requests of a route wait for a slot.
 *
 * A request that finds a target with a free slot takes it at once. Otherwise it waits here, and the limiter of each
 * target that has room asks for the request that is next. Interactive requests are a class of their own, in which projects
 * take turns. The limiter decides how they and lines share a target. The {@link FairQueue} of the route decides which
 * batch sends the next line. A batch has few new lines here, one for each of its open chunks: a chunk asks for its next
 * line when the line before has its slot. Lines that are sent again wait here too. Within a batch the line that has
 * waited longest goes first, so neither kind can keep the other waiting.
 *
 * A request may avoid targets at which it has failed. Requests of a batch that avoid the same targets wait in one list,
 * and only the first of a list is examined. A grant must cost the same however many requests wait.
 */
import type { FairQueue, Flow } from "../batch/fair-queue.ts";
import type { Clock } from "../clock.ts";
import type { Lane, SlotSource } from "./capacity/limiter.ts";
import type { Reservation } from "./capacity/rate/quota.ts";
import { offAbort, onAbort } from "./exchange/abort-listeners.ts";
import { chooseTarget, type Eligible } from "./load-balancer.ts";
import { ProjectTurns } from "./project-turns.ts";
import { Slot, type SlotRequest } from "./slot.ts";
import { Waiter, WaitGroup } from "./wait-group.ts";

/** Answering so many interactive requests takes some 6 ms. */
const REDIRECTED_AT_ONCE = 32;

export interface SlotQueueOptions<Target> {
  readonly targets: readonly Target[];
  readonly flows: FairQueue;
  /** Returns the targets to which the request may go now, full or not. The request waits unless there are none. */
  readonly choices: (request: SlotRequest<Target>, nowMs: number) => readonly Target[];
  /** Whether no line goes out for the first time at the moment. */
  readonly holdsNewLinesBack: () => boolean;
  readonly clock: Clock;
  /** Draws a number from 0 up to 1. */
  readonly random: () => number;
}

/** A target that could take a request, among all to which it may go. */
interface Offer<Target> {
  readonly eligible: readonly Target[];
  readonly target: Target;
  readonly nowMs: number;
}

export class SlotQueue<Target extends Eligible> {
  readonly #options: SlotQueueOptions<Target>;
  readonly #sources: readonly TargetView<Target>[];
  readonly #interactive = new ProjectTurns<Target>();
  /** The waiting lines by their flows. */
  readonly #lines = new Map<Flow, WaitGroup<Target>>();
  /** The flow of lines that have none of their own. */
  readonly #guest: Flow;
  #waitingCount = 0;
  #order = 0;
  #hadToWait = false;
  /** Whether others are redirected in the next turn. */
  #isRedirecting = false;
  /** Whether free slots are offered again in the next turn. */
  #isRechecking = false;

  constructor(options: SlotQueueOptions<Target>) {
    this.#options = options;
    this.#sources = options.targets.map((target) => new TargetView(this, target));
    this.#guest = options.flows.guest();
  }

  get waitingCount(): number {
    return this.#waitingCount;
  }

  isWaiting(lane: Lane): boolean {
    return lane === "interactive" ? !this.#interactive.isEmpty : this.#lines.size > 0;
  }

  /** Whether a line had to wait since this was asked last. */
  takeHadToWait(): boolean {
    const hadToWait = this.#hadToWait;
    this.#hadToWait = this.#lines.size > 0;
    return hadToWait;
  }

  /**
   * Returns a free slot of the best target at once, without a promise. Otherwise it resolves to the first slot that is
   * free when it is this request's turn; null once `signal` has aborted, or when no target would do any more.
   */
  acquire(
    request: SlotRequest<Target>,
    signal: AbortSignal,
  ): Slot<Target> | null | Promise<Slot<Target> | null> {
    if (signal.aborted) return null;
    const { flows, clock, choices, random } = this.#options;
    const nowMs = clock.elapsedMs();
    const eligible = choices(request, nowMs);
    if (eligible.length === 0) return null;
    const isHeldBack = this.#isHeldBack(request);
    const hasRoom = ({ limiter }: Target) => !isHeldBack && limiter.canTake(request, nowMs);
    const target = chooseTarget(
      eligible.every(hasRoom) ? eligible : eligible.filter(hasRoom),
      random,
    );
    if (target !== null && !this.#isBetterGranting(request, { eligible, target, nowMs })) {
      if (request.flow !== null) flows.charge(request.flow);
      const reservation = target.limiter.take(request, nowMs);
      return new Slot(target, request, { reservation, waitedMs: 0 });
    }
    return new Promise((resolve) => {
      this.#add(new Waiter(request, { signal, sinceMs: nowMs, resolve, onAbort: this.#interrupt }));
    });
  }

  /** Returns the next request that may go to the target. */
  first(lane: Lane, target: Target, nowMs: number): Waiter<Target> | null {
    // The wait of a request whose signal has aborted is about to end.
    const mayGo = ({ request, signal }: Waiter<Target>) => {
      if (signal.aborted || this.#isHeldBack(request)) return false;
      const eligible = this.#options.choices(request, nowMs);
      if (!eligible.includes(target)) return false;
      return !this.#isBetterGranting(request, { eligible, target, nowMs });
    };
    if (lane === "interactive") return this.#interactive.first(mayGo);
    // One batch has the route for itself most of the time, and every grant passes here.
    if (this.#lines.size === 1) {
      for (const group of this.#lines.values()) return group.first(mayGo);
    }
    const ready: Flow[] = [];
    for (const [flow, group] of this.#lines) if (group.first(mayGo) !== null) ready.push(flow);
    const flow = this.#options.flows.next(ready);
    return flow === null ? null : (this.#lines.get(flow)?.first(mayGo) ?? null);
  }

  /** Offers free slots again, because new lines may go. */
  recheck(): void {
    this.#recheckAll(null);
  }

  grant(waiter: Waiter<Target>, target: Target, reservation: Reservation | null): void {
    const { flows, clock } = this.#options;
    if (waiter.request.lane === "batch") flows.take(waiter.request.flow ?? this.#guest);
    else this.#interactive.endTurn(waiter.request.request.project);
    this.#remove(waiter);
    const waitedMs = clock.elapsedMs() - waiter.sinceMs;
    waiter.resolve(new Slot(target, waiter.request, { reservation, waitedMs }));
    // The next request may need less of the other targets than this one.
    this.#recheckAll(target);
  }

  /**
   * Redirects what waits for a target that takes nothing for a while. Without another target a request stops waiting. Each
   * interactive one is then answered at once, and thousands may wait: so only some are redirected in a turn.
   */
  redirect(): void {
    if (this.#isRedirecting) return;
    const nowMs = this.#options.clock.elapsedMs();
    let left = REDIRECTED_AT_ONCE;
    for (const group of [this.#interactive, ...this.#lines.values()]) {
      for (const first of group.firsts()) left -= this.#removeFrom(first, { nowMs, atMost: left });
    }
    this.#recheckAll(null);
    if (left > 0) return;
    this.#isRedirecting = true;
    setImmediate(() => {
      this.#isRedirecting = false;
      this.redirect();
    });
  }

  readonly #interrupt = (waiter: Waiter<Target>): void => {
    this.#remove(waiter);
    waiter.resolve(null);
    // The next request may need less than this one.
    this.#recheckAll(null);
  };

  /** Removes requests from this one on, for as long as no target would take them. Returns how many. */
  #removeFrom(
    first: Waiter<Target> | null,
    { nowMs, atMost }: { readonly nowMs: number; readonly atMost: number },
  ): number {
    let count = 0;
    for (let waiter = first; waiter !== null && count < atMost; waiter = waiter.next) {
      if (this.#options.choices(waiter.request, nowMs).length > 0) break;
      this.#remove(waiter);
      waiter.resolve(null);
      count++;
    }
    return count;
  }

  #add(waiter: Waiter<Target>): void {
    const { lane, flow } = waiter.request;
    waiter.order = ++this.#order;
    const group = lane === "interactive" ? this.#interactive : this.#groupOf(flow ?? this.#guest);
    group.add(waiter, this.#options.targets);
    if (lane === "batch") this.#hadToWait = true;
    if (++this.#waitingCount === 1) {
      for (const source of this.#sources) source.target.limiter.add(source);
    }
    onAbort(waiter.signal, waiter);
    // The request may wait for a moment in time alone.
    this.#recheckAll(null);
  }

  #remove(waiter: Waiter<Target>): void {
    const flow = waiter.request.flow ?? this.#guest;
    const { lane } = waiter.request;
    offAbort(waiter.signal, waiter);
    const group = lane === "interactive" ? this.#interactive : this.#lines.get(flow);
    group?.remove(waiter);
    if (lane === "batch" && group?.isEmpty === true) this.#lines.delete(flow);
    if (--this.#waitingCount > 0) return;
    for (const source of this.#sources) source.target.limiter.remove(source);
  }

  /**
   * Whether a target of a better priority is giving out slots, and the request may get one. Those of this target are
   * offered again in the next turn, because the other one may have none left by then.
   */
  #isBetterGranting(
    request: SlotRequest<Target>,
    { eligible, target, nowMs }: Offer<Target>,
  ): boolean {
    const isGranting = eligible.some(
      ({ priority, limiter }) => priority < target.priority && limiter.isGrantingTo(request, nowMs),
    );
    if (isGranting && !this.#isRechecking) {
      this.#isRechecking = true;
      setImmediate(this.#onNextTurn);
    }
    return isGranting;
  }

  readonly #onNextTurn = (): void => {
    this.#isRechecking = false;
    this.recheck();
  };

  #isHeldBack({ lane, avoided }: SlotRequest<Target>): boolean {
    return lane === "batch" && avoided.length === 0 && this.#options.holdsNewLinesBack();
  }

  #groupOf(flow: Flow): WaitGroup<Target> {
    const known = this.#lines.get(flow);
    if (known !== undefined) return known;
    const group = new WaitGroup<Target>();
    this.#lines.set(flow, group);
    this.#options.flows.resume(flow);
    return group;
  }

  #recheckAll(besides: Target | null): void {
    for (const { target } of this.#sources) if (target !== besides) target.limiter.recheck();
  }
}

/** The queue as the limiter of one target sees it. */
class TargetView<Target extends Eligible> implements SlotSource {
  readonly #queue: SlotQueue<Target>;
  readonly target: Target;

  constructor(queue: SlotQueue<Target>, target: Target) {
    this.#queue = queue;
    this.target = target;
  }

  get waitingCount(): number {
    return this.#queue.waitingCount;
  }

  isWaiting(lane: Lane): boolean {
    return this.#queue.isWaiting(lane);
  }

  first(lane: Lane, nowMs: number): Waiter<Target> | null {
    return this.#queue.first(lane, this.target, nowMs);
  }

  grant(waiter: Waiter<Target>, reservation: Reservation | null): void {
    this.#queue.grant(waiter, this.target, reservation);
  }

  redirect(): void {
    this.#queue.redirect();
  }
}
