/**
 * How many requests a target may have in flight, and when it takes the next one.
 *
 * A limiter has no queue of its own. Requests wait in the queues of their routes (`slot-queue.ts`), and a limiter that
 * has a free slot asks these, in turn, for the next request that may come to its target. Two classes ask: single
 * requests whose client waits for the answer (*interactive*), and the lines of batches. Interactive requests go first,
 * and a few slots may be kept for them alone; but while both wait, lines keep a share (`batch-share.ts`). A target can
 * also be paused, cut off, or out of its quota for the minute, which its {@link Gate} knows.
 *
 * One invariant must never break: **while a target could take the request that is next, no request waits there** for
 * longer than a microtask. Whatever makes room (a release, a higher limit, the time at which the gate opens) looks for the
 * next request at once, so no wake-up can be lost. Between two grants the flow that was served has a microtask to
 * ask for its next line: slots that become free together are shared as fairly as those that come one by one.
 */
import type { Cancel, Clock } from "../../clock.ts";
import { BatchShare } from "./batch-share.ts";
import type { Reservation } from "./rate/quota.ts";

/** Who asks for a slot: an interactive request, or a line of a batch. */
export type Lane = "interactive" | "batch";

export interface SlotRequest {
  readonly lane: Lane;
  /** An estimate. */
  readonly tokens: number;
}

/** What decides, besides the slots, whether a target may be asked now. Its instants are of elapsed time. */
export interface Gate {
  /** When any request may go out; it may now, if that has passed. Infinity: not before something else changes. */
  openAtMs(): number;
  /** The same for this request, with what it takes of the rate limit. */
  readyAtMs(request: SlotRequest, nowMs: number): number;
  /** What this takes of the rate limit, in whatever unit; more than 0. */
  costOf(request: SlotRequest): number;
  /** The request goes out now. Its slot keeps what it has taken from the rate limit, null for nothing. */
  pass(request: SlotRequest, nowMs: number): Reservation | null;
}

interface SlotWaiter {
  readonly request: SlotRequest;
}

/** The requests of one route that wait, as one of its targets sees them. */
export interface SlotSource {
  readonly waitingCount: number;
  /** The next that may come to this target; null when none may. */
  first(lane: Lane, nowMs: number): SlotWaiter | null;
  /** Gives a slot of this target to the one that {@link first} has named. */
  grant(waiter: SlotWaiter, reservation: Reservation | null): void;
  /** The target takes nothing for a while, or for good: its requests may have to go elsewhere. */
  redirect(): void;
}

interface Next {
  readonly source: SlotSource;
  readonly waiter: SlotWaiter;
}

export interface LimiterOptions {
  readonly gate: Gate;
  readonly clock: Clock;
}

export class Limiter {
  readonly #gate: Gate;
  readonly #clock: Clock;
  #limit = 0;
  #batchLimit = 0;
  readonly #inFlight: Record<Lane, number> = { interactive: 0, batch: 0 };
  /** Routes with requests that wait. The first is asked first. */
  readonly #sources = new Set<SlotSource>();
  readonly #batchShare = new BatchShare();
  #isClosed = false;
  #isGranting = false;
  #alarm: { readonly atMs: number; readonly cancel: Cancel } | null = null;

  constructor({ gate, clock }: LimiterOptions) {
    this.#gate = gate;
    this.#clock = clock;
  }

  /** The requests of both lanes together. */
  get limit(): number {
    return this.#limit;
  }

  /** Whether it takes nothing any more. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** How many of them may be lines of batches. */
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

  /** Lower limits take no slot away: they are reached as slots come back. Once it is closed they stay at none. */
  setLimits(limit: number, batchLimit: number): void {
    if (this.#isClosed) return;
    this.#limit = limit;
    this.#batchLimit = Math.min(batchLimit, limit);
    this.recheck();
  }

  /** What lines keep while interactive requests wait too, from 0 to 1. */
  setBatchShare(share: number): void {
    this.#batchShare.set(share);
    this.recheck();
  }

  /** The source has requests that wait. */
  add(source: SlotSource): void {
    this.#sources.add(source);
  }

  remove(source: SlotSource): void {
    this.#sources.delete(source);
  }

  /** Whether the request could go out now without overtaking one whose turn it is. */
  canTake(request: SlotRequest, nowMs: number): boolean {
    if (!this.#hasSlotFor(request.lane) || this.#gate.readyAtMs(request, nowMs) > nowMs)
      return false;
    return this.#sources.size === 0 || this.#next(nowMs) === null;
  }

  /** Counts a slot as taken; only when it {@link canTake} the request. */
  take(request: SlotRequest, nowMs: number): Reservation | null {
    this.#inFlight[request.lane]++;
    if (this.#sources.size > 0 || request.lane === "batch") this.#countTurn(request, nowMs);
    return this.#gate.pass(request, nowMs);
  }

  /** Called by the release of a slot, which sees to it that it happens once. */
  release(lane: Lane): void {
    this.#inFlight[lane]--;
    this.recheck();
  }

  /** Grants what there is to those who wait. To be called when the gate may have opened. */
  recheck(): void {
    if (!this.#isGranting) this.#grantNext();
  }

  /** One at a time: the flow that is served asks for its next line before another one is. */
  readonly #grantNext = (): void => {
    this.#isGranting = false;
    if (this.#sources.size === 0 || this.totalInFlight >= this.#limit) return;
    const nowMs = this.#clock.elapsedMs();
    const openAtMs = this.#gate.openAtMs();
    if (openAtMs > nowMs) {
      this.#recheckAt(openAtMs, nowMs);
      return;
    }
    const next = this.#next(nowMs);
    if (next === null) return;
    const { source, waiter } = next;
    const readyAtMs = this.#gate.readyAtMs(waiter.request, nowMs);
    if (readyAtMs > nowMs) {
      this.#recheckAt(readyAtMs, nowMs);
      return;
    }
    this.#isGranting = true;
    if (this.#sources.size > 1) {
      // The other routes come first next time.
      this.#sources.delete(source);
      this.#sources.add(source);
    }
    source.grant(waiter, this.take(waiter.request, nowMs));
    queueMicrotask(this.#grantNext);
  };

  /** The request whose turn it is, as far as slots decide it; null when none waits that there is a slot for. */
  #next(nowMs: number): Next | null {
    const interactive = this.#hasSlotFor("interactive") ? this.#first("interactive", nowMs) : null;
    const line = this.#hasSlotFor("batch") ? this.#first("batch", nowMs) : null;
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

  /** Takes nothing any more, and sends away what waits for it alone. */
  close(): void {
    this.#isClosed = true;
    this.#limit = 0;
    this.#batchLimit = 0;
    this.#alarm?.cancel();
    this.redirect();
  }

  /** The target takes nothing for a while: requests that need not wait for it are to go elsewhere. */
  redirect(): void {
    for (const source of [...this.#sources]) source.redirect();
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
