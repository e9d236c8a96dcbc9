/**
 * How many requests a target may have in flight, and who is next.
 *
 * Two lanes wait for the slots of a target: single requests that somebody sits in front of (*interactive*), and
 * the lines of batches. Interactive ones go first, and a few slots may be kept for them alone; but while both wait
 * lines keep a share (`batch-share.ts`). A slot is not all: a target can also be paused, cut off, or out of its
 * quota for the minute, which its {@link Gate} tells.
 *
 * A waiter stands in the line of every target that would do and takes the first slot that it is given. One
 * invariant carries it all: **while a target could take whoever is next, nobody waits there**. Whatever makes
 * room (a release, a higher limit, the time at which the gate opens) hands it on in the same step, to the lane whose
 * turn it is and there in the order of arrival; so taking a free slot never overtakes anybody whose turn it is, and no
 * wake-up can be lost.
 */
import type { Cancel, Clock } from "../clock.ts";
import { BatchShare } from "./batch-share.ts";
import type { Lane, Need } from "./reservation.ts";
import { type Place, type SlotWaiter, WaitingLine } from "./wait-queue.ts";

/** What decides, besides the slots, whether a target may be asked now. Its instants are of elapsed time. */
export interface Gate {
  /** When this may go out; now, if that is not after `nowMs`. Infinity: not before something else changes. */
  readyAtMs(need: Need, nowMs: number): number;
  /** What this takes of the rate limit, in whatever unit; more than 0. */
  costOf(need: Need): number;
  /** It goes out now. */
  pass(need: Need, nowMs: number): void;
}

/** Whatever has a limit: here, a target. */
export interface Limited {
  readonly limiter: Limiter;
}

/** The right to one request in flight at `target`. */
export class Slot<Target extends Limited> {
  readonly target: Target;
  readonly need: Need;
  #isHeld = true;

  constructor(target: Target, need: Need) {
    this.target = target;
    this.need = need;
  }

  /** Gives the slot back; once, however often it is called. */
  release(): void {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    this.target.limiter.giveBack(this.need.lane);
  }
}

const LANES: readonly Lane[] = ["interactive", "batch"];

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
  readonly #waiting: Readonly<Record<Lane, WaitingLine>> = {
    interactive: new WaitingLine(),
    batch: new WaitingLine(),
  };
  readonly #batchShare = new BatchShare();
  readonly #limitsListeners = new Set<() => void>();
  #isClosed = false;
  #isHandingOn = false;
  #alarm: { readonly atMs: number; readonly cancel: Cancel } | null = null;

  constructor({ gate, clock }: LimiterOptions) {
    this.#gate = gate;
    this.#clock = clock;
  }

  /** Of both lanes together. */
  get limit(): number {
    return this.#limit;
  }

  /** Whether it takes nobody any more. */
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
    return this.#waiting.interactive.count + this.#waiting.batch.count;
  }

  /** Lower limits take no slot away: they are reached as slots come back. Once it is closed they stay at none. */
  setLimits(limit: number, batchLimit: number): void {
    if (this.#isClosed) return;
    this.#limit = limit;
    this.#batchLimit = Math.min(batchLimit, limit);
    for (const tell of this.#limitsListeners) tell();
    this.handOn();
  }

  /** What lines keep while interactive requests wait too, from 0 to 1. */
  setBatchShare(share: number): void {
    this.#batchShare.set(share);
    this.handOn();
  }

  /** Called whenever the limits have moved. */
  onLimits(listener: () => void): void {
    this.#limitsListeners.add(listener);
  }

  offLimits(listener: () => void): void {
    this.#limitsListeners.delete(listener);
  }

  /** Whether it could go out now without overtaking anybody whose turn it is. */
  canTake(need: Need): boolean {
    if (!this.#hasSlotFor(need.lane) || this.#waiting.interactive.first !== null) return false;
    if (need.lane === "batch" ? this.#waiting.batch.first !== null : this.#isLineDue) return false;
    const nowMs = this.#clock.elapsedMs();
    return this.#gate.readyAtMs(need, nowMs) <= nowMs;
  }

  /** Counts a slot as taken; only when it {@link canTake} the need. */
  take(need: Need): void {
    this.#inFlight[need.lane]++;
    this.#noteTurn(need);
    this.#gate.pass(need, this.#clock.elapsedMs());
  }

  /** Called by {@link Slot.release}, which sees to it that it happens once. */
  giveBack(lane: Lane): void {
    this.#inFlight[lane]--;
    this.handOn();
  }

  /** Null when it takes nobody any more. */
  join(waiter: SlotWaiter, target: number): Place | null {
    if (this.#isClosed) return null;
    const place = this.#waiting[waiter.need.lane].join(waiter, target);
    // What it waits for may be a matter of time alone.
    this.handOn();
    return place;
  }

  leave(place: Place): void {
    const { lane } = place.waiter.need;
    const isFirst = this.#waiting[lane].first === place;
    this.#waiting[lane].leave(place);
    // The next one may need less than the one who left.
    if (isFirst) this.handOn();
  }

  /** Gives what there is to those who wait. To be called when the gate may have opened. */
  handOn(): void {
    // Whoever is served here leaves other lines, where the next one is served, who leaves this one: thousands deep.
    if (this.#isHandingOn) return;
    this.#isHandingOn = true;
    try {
      this.#serve();
    } finally {
      this.#isHandingOn = false;
    }
  }

  #serve(): void {
    for (let next = this.#next; next !== null; next = this.#next) {
      const { waiter, target } = next;
      const nowMs = this.#clock.elapsedMs();
      const readyAtMs = this.#gate.readyAtMs(waiter.need, nowMs);
      if (readyAtMs > nowMs) {
        this.#lookAgainAt(readyAtMs, nowMs);
        return;
      }
      this.#waiting[waiter.need.lane].leave(next);
      this.take(waiter.need);
      waiter.grant(target);
    }
  }

  /** Whose turn it is, as far as slots decide it; null when nobody waits for whom there is one. */
  get #next(): Place | null {
    const { interactive, batch } = this.#waiting;
    const lane = interactive.first === null || this.#isLineDue ? batch : interactive;
    return lane.first !== null && this.#hasSlotFor(lane.first.waiter.need.lane) ? lane.first : null;
  }

  /** Whether a line goes before any interactive request. */
  get #isLineDue(): boolean {
    const { first } = this.#waiting.batch;
    if (first === null || !this.#hasSlotFor("batch")) return false;
    const { limit, totalInFlight } = this;
    const use = { limit, totalInFlight, batchInFlight: this.#inFlight.batch };
    return this.#batchShare.isDue(this.#gate.costOf(first.waiter.need), use);
  }

  #noteTurn(need: Need): void {
    const { first: line } = this.#waiting.batch;
    if (need.lane === "batch") this.#batchShare.spend(this.#gate.costOf(need));
    else if (line !== null) {
      this.#batchShare.earn(this.#gate.costOf(need), this.#gate.costOf(line.waiter.need));
    }
  }

  /** Takes nobody any more, and sends away who waits. */
  close(): void {
    this.#isClosed = true;
    this.#limit = 0;
    this.#batchLimit = 0;
    this.#alarm?.cancel();
    for (const { waiter, target } of this.#places()) waiter.turnAway(target);
  }

  /** The gate is shut for a while: sends away who would rather look around than wait for it. */
  shut(): void {
    for (const { waiter, target } of this.#places()) {
      if (waiter.ifShut === "leave") waiter.turnAway(target);
    }
  }

  /** A copy: whoever is sent away may move others. */
  #places(): Place[] {
    const places: Place[] = [];
    for (const lane of LANES) {
      let place = this.#waiting[lane].first;
      for (; place !== null; place = place.next) places.push(place);
    }
    return places;
  }

  #hasSlotFor(lane: Lane): boolean {
    if (this.totalInFlight >= this.#limit) return false;
    return lane === "interactive" || this.#inFlight.batch < this.#batchLimit;
  }

  #lookAgainAt(atMs: number, nowMs: number): void {
    if (atMs === Number.POSITIVE_INFINITY) return;
    if (this.#alarm !== null) {
      if (this.#alarm.atMs <= atMs) return;
      this.#alarm.cancel();
    }
    const cancel = this.#clock.after(Math.ceil(atMs - nowMs), () => {
      this.#alarm = null;
      this.handOn();
    });
    this.#alarm = { atMs, cancel };
  }
}
