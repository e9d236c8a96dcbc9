/**
 * The one queue in which the requests of a route wait for a slot.
 *
 * A request that finds a target with a free slot takes it at once. Otherwise it waits here, and the limiter of each
 * target that has room asks for the request that is next. Interactive requests are a class of their own, first come
 * first served; how they and lines share a target is the limiter's decision. Which batch sends the next line is decided by
 * the {@link FairQueue} of the route. A batch has few new lines here, one for each of its open chunks, since a chunk
 * asks for its next line when the one before has its slot; and besides those, lines that are sent again. Within a
 * batch the line that has waited longest goes first, so neither kind can keep the other waiting.
 *
 * A request may avoid targets at which it has failed. Requests of a batch that avoid the same ones wait in one list, of
 * which only the first is looked at, so a grant costs the same however many wait.
 */
import type { FairQueue, Flow } from "../batch/fair-queue.ts";
import type { Clock } from "../clock.ts";
import type { Lane, SlotSource } from "./capacity/limiter.ts";
import type { Reservation } from "./capacity/rate/quota.ts";
import { offAbort, onAbort } from "./exchange/abort-listeners.ts";
import { chooseTarget, type Eligible } from "./load-balancer.ts";
import { Slot, type SlotRequest } from "./slot.ts";
import { Waiter, WaitGroup } from "./wait-group.ts";

export interface SlotQueueOptions<Target> {
  readonly targets: readonly Target[];
  readonly flows: FairQueue;
  /** Where the request may go now, as far as a target is not just full. It waits where that is not empty. */
  readonly choices: (request: SlotRequest<Target>, nowMs: number) => readonly Target[];
  /** Whether no line goes out for the first time at the moment. */
  readonly holdsNewLinesBack: () => boolean;
  readonly clock: Clock;
  /** From 0 up to 1. */
  readonly random: () => number;
}

export class SlotQueue<Target extends Eligible> {
  readonly #options: SlotQueueOptions<Target>;
  readonly #sources: readonly TargetView<Target>[];
  readonly #interactive = new WaitGroup<Target>();
  readonly #groups = new WeakMap<Flow, WaitGroup<Target>>();
  /** Flows with lines that wait. */
  readonly #lines = new Map<Flow, WaitGroup<Target>>();
  /** For lines without a flow of their own. */
  readonly #guest: Flow;
  #waitingCount = 0;
  #order = 0;
  #hadToWait = false;

  constructor(options: SlotQueueOptions<Target>) {
    this.#options = options;
    this.#sources = options.targets.map((target) => new TargetView(this, target));
    this.#guest = options.flows.guest();
  }

  get waitingCount(): number {
    return this.#waitingCount;
  }

  /** Whether a line had to wait since this was asked last. */
  takeHadToWait(): boolean {
    const hadToWait = this.#hadToWait;
    this.#hadToWait = this.#lines.size > 0;
    return hadToWait;
  }

  /**
   * A slot of the best target that has one free, at once and without a promise; otherwise the first that comes
   * when it is this request's turn. Null once `signal` has aborted, or when no target would do any more.
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
    if (target !== null) {
      if (request.flow !== null) flows.charge(request.flow);
      const reservation = target.limiter.take(request, nowMs);
      return new Slot(target, request, { reservation, waitedMs: 0 });
    }
    return new Promise((resolve) => {
      this.#add(new Waiter(request, { signal, sinceMs: nowMs, resolve, onAbort: this.#interrupt }));
    });
  }

  /** The next request that may go to the target. */
  first(lane: Lane, target: Target, nowMs: number): Waiter<Target> | null {
    const mayGo = ({ request }: Waiter<Target>) =>
      !this.#isHeldBack(request) && this.#options.choices(request, nowMs).includes(target);
    if (lane === "interactive") return this.#interactive.first(mayGo);
    // A batch that has the route for itself is the usual case, and every slot that is granted comes by here.
    if (this.#lines.size === 1) {
      for (const group of this.#lines.values()) return group.first(mayGo);
    }
    const ready: Flow[] = [];
    for (const [flow, group] of this.#lines) if (group.first(mayGo) !== null) ready.push(flow);
    const flow = this.#options.flows.next(ready);
    return flow === null ? null : (this.#lines.get(flow)?.first(mayGo) ?? null);
  }

  /** New lines may go again. */
  recheck(): void {
    this.#recheckAll(null);
  }

  grant(waiter: Waiter<Target>, target: Target, reservation: Reservation | null): void {
    const { flows, clock } = this.#options;
    if (waiter.request.lane === "batch") flows.take(waiter.request.flow ?? this.#guest);
    this.#remove(waiter);
    const waitedMs = clock.elapsedMs() - waiter.sinceMs;
    waiter.resolve(new Slot(target, waiter.request, { reservation, waitedMs }));
    // The next one may need less of the others than this one.
    this.#recheckAll(target);
  }

  /** A target takes nothing for a while: a request that no other one would take ends its wait, the rest may go elsewhere. */
  redirect(): void {
    const nowMs = this.#options.clock.elapsedMs();
    for (const group of [this.#interactive, ...this.#lines.values()]) {
      for (const first of group.firsts()) this.#removeFrom(first, nowMs);
    }
    this.#recheckAll(null);
  }

  readonly #interrupt = (waiter: Waiter<Target>): void => {
    this.#remove(waiter);
    waiter.resolve(null);
    // The next one may need less than this one.
    this.#recheckAll(null);
  };

  /** From this one on, for as long as no target would take them. */
  #removeFrom(first: Waiter<Target> | null, nowMs: number): void {
    for (let waiter = first; waiter !== null; waiter = waiter.next) {
      if (this.#options.choices(waiter.request, nowMs).length > 0) return;
      this.#remove(waiter);
      waiter.resolve(null);
    }
  }

  #add(waiter: Waiter<Target>): void {
    const { lane, flow } = waiter.request;
    waiter.order = ++this.#order;
    this.#groupOf(lane, flow ?? this.#guest).add(waiter, this.#options.targets);
    if (lane === "batch") this.#hadToWait = true;
    if (++this.#waitingCount === 1) {
      for (const source of this.#sources) source.target.limiter.add(source);
    }
    onAbort(waiter.signal, waiter);
    // What it waits for may be a matter of time alone.
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

  #isHeldBack({ lane, avoided }: SlotRequest<Target>): boolean {
    return lane === "batch" && avoided.length === 0 && this.#options.holdsNewLinesBack();
  }

  #groupOf(lane: Lane, flow: Flow): WaitGroup<Target> {
    if (lane === "interactive") return this.#interactive;
    const group = this.#groups.get(flow) ?? new WaitGroup<Target>();
    if (this.#lines.has(flow)) return group;
    this.#groups.set(flow, group);
    this.#lines.set(flow, group);
    this.#options.flows.resume(flow);
    return group;
  }

  #recheckAll(besides: Target | null): void {
    for (const { target } of this.#sources) if (target !== besides) target.limiter.recheck();
  }
}

/** What the limiter of a target sees of the queue. */
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
