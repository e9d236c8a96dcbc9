/**
 * The timeouts of one attempt: a bound for each thing it waits for, and one for the whole.
 *
 * Thousands run at once, so each has one timer only. The timer is set for the earliest instant at which any bound can
 * have passed. When it rings, it looks up the bound that counts by then, and is set again if there is time left. An
 * attempt that moves on therefore only notes the time.
 *
 * A process that stood still, such as a paused container, rings all its timers before it reads what has come meanwhile. An
 * answer may be among that. So a timer that rings late gives the attempt as much time more as it was late.
 */
import type { Cancel, Clock } from "../../clock.ts";

export interface Timeouts {
  readonly connectMs: number;
  /** The time from the request to the status and the headers; infinite when only the total counts. */
  readonly firstByteMs: number;
  /** The time between two pieces of an answer; infinite when only the total counts. */
  readonly idleMs: number;
  readonly totalMs: number;
}

/** The thing that an attempt waits for. While its `reader` is slow, only the total counts. */
export type Awaited = "connection" | "first_byte" | "more" | "reader";

export interface Impatient {
  /** Ends the attempt. `answer` means that the time for the whole attempt is over. */
  expire(waitedFor: Awaited | "answer"): void;
}

/** A timer may ring a little before its time. */
const EARLY_MS = 1;
/** A timer that is later than this has waited for a process that stood still. */
const LATE_MS = 100;
/** The most time that an attempt gets then. What has come is read at once, and an answer that was cut off may need some more. */
const MAX_MORE_MS = 10_000;

export class TimeoutTimer {
  readonly #timeouts: Timeouts;
  readonly #owner: Impatient;
  readonly #clock: Clock;
  readonly #startedAtMs: number;
  #awaited: Awaited = "connection";
  #sinceMs: number;
  /** Whether it rang late once, and has given more time. */
  #wasLate = false;
  readonly #ring = (): void => this.#check();
  #cancel: Cancel;

  constructor(timeouts: Timeouts, clock: Clock, owner: Impatient) {
    this.#timeouts = timeouts;
    this.#owner = owner;
    this.#clock = clock;
    this.#startedAtMs = clock.elapsedMs();
    this.#sinceMs = this.#startedAtMs;
    const { connectMs, totalMs } = timeouts;
    const firstMs = Math.min(connectMs, totalMs, shortestLater("connection", timeouts));
    this.#cancel = clock.after(firstMs, this.#ring);
  }

  /** Begins the wait for this, or for the next one of the same kind. */
  await(awaited: Awaited): void {
    this.#awaited = awaited;
    if (boundOf(awaited, this.#timeouts) !== Number.POSITIVE_INFINITY) {
      this.#sinceMs = this.#clock.elapsedMs();
    }
  }

  stop(): void {
    this.#cancel();
  }

  #check(): void {
    const nowMs = this.#clock.elapsedMs();
    const stageEndsAtMs = this.#sinceMs + boundOf(this.#awaited, this.#timeouts);
    const endsAtMs = this.#startedAtMs + this.#timeouts.totalMs;
    const leftMs = Math.min(stageEndsAtMs, endsAtMs) - nowMs;
    if (leftMs < -LATE_MS && !this.#wasLate) {
      this.#wasLate = true;
      this.#cancel = this.#clock.after(Math.min(-leftMs, MAX_MORE_MS), this.#ring);
    } else if (leftMs <= EARLY_MS) {
      this.#owner.expire(stageEndsAtMs <= endsAtMs ? this.#awaited : "answer");
    } else {
      const waitMs = Math.min(leftMs, shortestLater(this.#awaited, this.#timeouts));
      this.#cancel = this.#clock.after(waitMs, this.#ring);
    }
  }
}

function boundOf(awaited: Awaited, { connectMs, firstByteMs, idleMs }: Timeouts): number {
  switch (awaited) {
    case "connection":
      return connectMs;
    case "first_byte":
      return firstByteMs;
    case "more":
      return idleMs;
    case "reader":
      return Number.POSITIVE_INFINITY;
  }
}

/** The shortest wait that can still begin after this one. */
const shortestLater = (awaited: Awaited, { firstByteMs, idleMs }: Timeouts) =>
  awaited === "connection" ? Math.min(firstByteMs, idleMs) : idleMs;
