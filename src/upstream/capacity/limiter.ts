/**
 * Decides how many requests a target may have in flight, and when it takes the next one.
 *
 * A limiter has no queue of its own. Requests wait in the queues of their routes (`slot-queue.ts`), and a limiter that
 * has a free slot asks these, in turn, for the next request that may come to its target. Two classes ask: single
 * requests whose client waits for the answer (*interactive*), and the lines of batches. Interactive requests go first,
 * and a few slots may be kept for them alone. While both wait, lines keep a share (`batch-share.ts`). A target can also
 * be paused, cut off, or out of its quota for the minute, which its {@link Gate} knows.
 *
 * One invariant must never break: **while a target could take the request that is next, no request waits there** for
 * longer than a microtask. Every event that makes room (a release, a higher limit, the time at which the gate opens)
 * grants slots at once, so no wake-up can be lost. Between two grants the flow that was served has a microtask to ask
 * for its next line: slots that become free together are shared as fairly as those that come one by one.
 */
import type { Cancel, Clock } from "../../clock.ts";
import type { TurnBudget } from "../../resources/turn-budget.ts";
import { BatchShare } from "./batch-share.ts";
import type { Reservation } from "./rate/quota.ts";

/** The kind of request that asks for a slot: an interactive request, or a line of a batch. */
export type Lane = "interactive" | "batch";

export interface SlotRequest {
  readonly lane: Lane;
  /** An estimate. */
  readonly tokens: number;
}

/** The part that decides, besides the slots, whether a target may be asked now. Its instants are of elapsed time. */
export interface Gate {
  /**
   * Returns when any request of a lane may go out: now, if that has passed. Infinity means not before something else changes.
   * Lines never may before interactive requests.
   */
  openAtMs(lane: Lane): number;
  /** Returns when this request may go out, with the units that it takes from the rate limit. */
  readyAtMs(request: SlotRequest, nowMs: number): number;
  /** Returns the cost of the request by the rate limit, in any unit, above 0. */
  costOf(request: SlotRequest): number;
  /** Lets the request go out now. Returns what its slot keeps of the rate limit; null for nothing. */
  pass(request: SlotRequest, nowMs: number): Reservation | null;
}

interface SlotWaiter {
  readonly request: SlotRequest;
}

/** The requests of one route that wait, as one of its targets sees them. */
export interface SlotSource {
  readonly waitingCount: number;
  isWaiting(lane: Lane): boolean;
  /** Returns the next request that may come to this target; null when none may. */
  first(lane: Lane, nowMs: number): SlotWaiter | null;
  /** Gives a slot of this target to the request that {@link first} has named. */
  grant(waiter: SlotWaiter, reservation: Reservation | null): void;
  /** Lets requests go elsewhere, because the target takes nothing for a while, or for good. */
  redirect(): void;
}

interface Next {
  readonly source: SlotSource;
  readonly waiter: SlotWaiter;
}

export interface LimiterOptions {
  readonly gate: Gate;
  readonly clock: Clock;
  readonly turn: TurnBudget;
}

export class Limiter {
  readonly #gate: Gate;
  readonly #clock: Clock;
  readonly #turn: TurnBudget;
  #limit = 0;
  #batchLimit = 0;
  readonly #inFlight: Record<Lane, number> = { interactive: 0, batch: 0 };
  /** The routes with requests that wait. The first is asked first. */
  readonly #sources = new Set<SlotSource>();
  readonly #batchShare = new BatchShare();
  #isClosed = false;
  /** Whether a slot was granted, and the next one is about to be. */
  #isGranting = false;
  /** Whether a line has a slot, and is sent as soon as a turn has time. */
  #isOutOfTime = false;
  #alarm: { readonly atMs: number; readonly cancel: Cancel } | null = null;

  constructor({ gate, clock, turn }: LimiterOptions) {
    this.#gate = gate;
    this.#clock = clock;
    this.#turn = turn;
  }

  /** The limit on the requests of both lanes together. */
  get limit(): number {
    return this.#limit;
  }

  /** Whether the target takes no more requests. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** The part of the limit that lines of batches may take. */
  get batchLimit(): number {
    return this.#batchLimit;
  }

  get inFlight(): Readonly<Record<Lane, number>> {
    return this.#inFlight;
  }

  get totalInFlight(): number {
    return this.#inFlight.interactive + this.#inFlight.batch;
  }

  get waitingCount(): number {
    let count = 0;
    for (const source of this.#sources) count += source.waitingCount;
    return count;
  }

  /** Whether requests of this lane wait. */
  isWaiting(lane: Lane): boolean {
    return this.#sources.values().some((source) => source.isWaiting(lane));
  }

  /** Sets the limits. Lower ones take no slot away, but apply as slots come back. A closed limiter stays at 0. */
  setLimits(limit: number, batchLimit: number): void {
    if (this.#isClosed) return;
    this.#limit = limit;
    this.#batchLimit = Math.min(batchLimit, limit);
    this.recheck();
  }

  /** Sets the share that lines keep while interactive requests wait too, from 0 to 1. */
  setBatchShare(share: number): void {
    this.#batchShare.set(share);
    this.recheck();
  }

  /** Adds a source that has requests waiting. */
  add(source: SlotSource): void {
    this.#sources.add(source);
  }

  remove(source: SlotSource): void {
    this.#sources.delete(source);
  }

  /** Returns whether the request could go out now without overtaking one whose turn it is. */
  canTake(request: SlotRequest, nowMs: number): boolean {
    if (!this.#canSend(request, nowMs)) return false;
    if (this.#sources.size > 0 && this.#next(nowMs, this.#gate.openAtMs("batch") <= nowMs) !== null)
      return false;
    return this.#hasTimeFor(request.lane);
  }

  /** Whether slots are being given out, which may take several turns, and one of them would do for the request. */
  isGrantingTo(request: SlotRequest, nowMs: number): boolean {
    if (!this.#isGranting && !this.#isOutOfTime) return false;
    return this.#canSend(request, nowMs);
  }

  /** Takes a slot. The caller has checked with {@link canTake}. */
  take(request: SlotRequest, nowMs: number): Reservation | null {
    this.#inFlight[request.lane]++;
    if (this.#sources.size > 0 || request.lane === "batch") this.#countTurn(request, nowMs);
    return this.#gate.pass(request, nowMs);
  }

  /** Frees a slot. The slot makes sure that it is freed once. */
  release(lane: Lane): void {
    this.#inFlight[lane]--;
    this.recheck();
  }

  /** Grants free slots to the requests that wait. It must be called when the gate may have opened. */
  recheck(): void {
    if (!this.#isGranting) this.#grantNext();
  }

  readonly #onNextTurn = (): void => this.recheck();

  /** Grants one slot at a time, so that the flow that was served can ask for its next line before the next grant. */
  readonly #grantNext = (): void => {
    this.#isGranting = false;
    this.#isOutOfTime = false;
    if (this.#sources.size === 0 || this.totalInFlight >= this.#limit) return;
    const nowMs = this.#clock.elapsedMs();
    const openAtMs = this.#gate.openAtMs("batch");
    const mayLinesGo = openAtMs <= nowMs;
    if (!mayLinesGo) {
      this.#recheckAt(openAtMs, nowMs);
      if (this.#gate.openAtMs("interactive") > nowMs) return;
    }
    const next = this.#next(nowMs, mayLinesGo);
    if (next === null) return;
    const { source, waiter } = next;
    const readyAtMs = this.#gate.readyAtMs(waiter.request, nowMs);
    if (readyAtMs > nowMs) {
      this.#recheckAt(readyAtMs, nowMs);
      return;
    }
    // The slot is kept for the line: an interactive request must not have it because the turn is over.
    this.#isOutOfTime = !this.#hasTimeFor(waiter.request.lane);
    if (this.#isOutOfTime) return;
    this.#isGranting = true;
    if (this.#sources.size > 1) {
      // The other routes come first next time.
      this.#sources.delete(source);
      this.#sources.add(source);
    }
    source.grant(waiter, this.take(waiter.request, nowMs));
    queueMicrotask(this.#grantNext);
  };

  /** Returns the request whose turn it is, as far as slots decide it; null when there is a slot for none. */
  #next(nowMs: number, mayLinesGo: boolean): Next | null {
    const interactive = this.#hasSlotFor("interactive") ? this.#first("interactive", nowMs) : null;
    const mayTakeLine = mayLinesGo && this.#hasSlotFor("batch");
    const line = mayTakeLine ? this.#first("batch", nowMs) : null;
    if (interactive === null || line === null) return interactive ?? line;
    const { limit, totalInFlight } = this;
    const use = { limit, totalInFlight, batchInFlight: this.#inFlight.batch };
    return this.#batchShare.isDue(this.#gate.costOf(line.waiter.request), use) ? line : interactive;
  }

  #first(lane: Lane, nowMs: number): Next | null {
    for (const source of this.#sources) {
      const waiter = source.first(lane, nowMs);
      if (waiter !== null) return { source, waiter };
    }
    return null;
  }

  #countTurn(request: SlotRequest, nowMs: number): void {
    if (request.lane === "batch") {
      this.#batchShare.spend(this.#gate.costOf(request));
      return;
    }
    const line = this.#first("batch", nowMs);
    if (line === null) return;
    this.#batchShare.earn(this.#gate.costOf(request), this.#gate.costOf(line.waiter.request));
  }

  /** Closes the limiter for good, and redirects the requests that wait for it alone. */
  close(): void {
    this.#isClosed = true;
    this.#limit = 0;
    this.#batchLimit = 0;
    this.#alarm?.cancel();
    this.redirect();
  }

  /** Sends requests elsewhere that need not wait for this target, which takes nothing for a while. */
  redirect(): void {
    for (const source of [...this.#sources]) source.redirect();
  }

  #canSend(request: SlotRequest, nowMs: number): boolean {
    return this.#hasSlotFor(request.lane) && this.#gate.readyAtMs(request, nowMs) <= nowMs;
  }

  #hasTimeFor(lane: Lane): boolean {
    return lane === "interactive" || this.#turn.hasTime(this.#onNextTurn);
  }

  #hasSlotFor(lane: Lane): boolean {
    if (this.totalInFlight >= this.#limit) return false;
    return lane === "interactive" || this.#inFlight.batch < this.#batchLimit;
  }

  #recheckAt(atMs: number, nowMs: number): void {
    if (atMs === Number.POSITIVE_INFINITY) return;
    if (this.#alarm !== null) {
      if (this.#alarm.atMs <= atMs) return;
      this.#alarm.cancel();
    }
    const cancel = this.#clock.after(Math.ceil(atMs - nowMs), () => {
      this.#alarm = null;
      this.recheck();
    });
    this.#alarm = { atMs, cancel };
  }
}
