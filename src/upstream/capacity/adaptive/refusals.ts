/**
 * Where a target refuses, and when to try again beyond that.
 *
 * Refusals fall into a leaky bucket: scattered errors leak away, and a target that is full makes it overflow at
 * once, because what is refused is replaced and refused again. The overflow tells the ceiling: what was in
 * flight at the first refusal, less what was refused of it. A whole burst is therefore one event.
 *
 * A probe beyond a known ceiling costs what its refusal costs, which is the pause that the target asks for. So
 * the wait before it is a multiple of that pause, and longer each time the ceiling is found where it was.
 */
import type { Sample } from "./round.ts";

/** Answers that make up for one refusal: up to 4 % of errors never overflow. */
const ANSWERS_PER_REFUSAL = 25;
/** Chance does not gather so many; beyond a level that is known to be good, fewer are proof. */
const OVERFLOW = { known: 6, probe: 2 };
/** A server that says when to come back means it. */
const WEIGHT_WITH_PAUSE = 2;
/** Probes may take so much of the time as pauses. */
const PROBE_SHARE = 0.03;
/** And without a pause: refused requests stay far below one in a hundred. */
const LATENCIES_PER_PROBE = 20;
/** So far from the ceiling it is still what holds the limit. */
const NEAR = 1.2;
/** How often the wait doubles while the ceiling stays. */
const MAX_PATIENCE = 4;
/** A refusal without a probe comes from others who are growing: then nobody waits long, so that shares become equal. */
const SHARED_PATIENCE = 0.25;

interface Judged {
  readonly atMs: number;
  readonly burstAtMs: number;
  /** The burst may not take the limit below this. */
  readonly floor: number;
}

export interface Verdict {
  readonly limit: number;
  /** False when it goes on with the burst that was judged before. */
  readonly isNew: boolean;
}

export class Refusals {
  #bucket = 0;
  #burst: { readonly atMs: number; readonly inFlight: number; refused: number } | null = null;
  #judged: Judged = { atMs: Number.NEGATIVE_INFINITY, burstAtMs: 0, floor: 0 };
  #ceiling = Number.POSITIVE_INFINITY;
  #waitUntilMs = Number.NEGATIVE_INFINITY;
  #patience = 1;

  noteAnswer(): void {
    this.#bucket = Math.max(0, this.#bucket - 1 / ANSWERS_PER_REFUSAL);
    if (this.#bucket === 0) this.#burst = null;
  }

  /** The highest limit to go to from `limit`: never past the ceiling in one step. */
  mostAt(nowMs: number, limit: number): number {
    const isBelow = limit < this.#ceiling;
    return isBelow || nowMs < this.#waitUntilMs ? this.#ceiling : Number.POSITIVE_INFINITY;
  }

  /** Whether it refuses about there. */
  isNear(limit: number): boolean {
    return NEAR * limit >= this.#ceiling && limit <= NEAR * this.#ceiling;
  }

  /** Another limit, once the bucket overflows. `proven` is one that the target has taken; null without a probe. */
  note(sample: Sample, limit: number, proven: number | null): Verdict | null {
    const { startedAtMs, endedAtMs, signal, inFlight, pauseMs } = sample;
    if (startedAtMs <= this.#judged.atMs) return this.#noteLate(sample, limit);
    this.#burst ??= { atMs: endedAtMs, inFlight, refused: 0 };
    if (startedAtMs <= this.#burst.atMs) this.#burst.refused++;
    this.#bucket += pauseMs > 0 ? WEIGHT_WITH_PAUSE : 1;
    if (this.#bucket < (proven === null ? OVERFLOW.known : OVERFLOW.probe)) return null;
    const { atMs: burstAtMs, refused, inFlight: present } = this.#burst;
    // All time out together when they waited too long: that tells nothing about how many would be right.
    const floor = signal === "timed_out" ? Math.ceil(limit / 2) : Math.min(limit, proven ?? 1);
    this.#judged = { atMs: endedAtMs, burstAtMs, floor };
    this.#bucket = 0;
    this.#burst = null;
    return { limit: Math.min(limit, Math.max(floor, present - refused)), isNew: true };
  }

  #noteLate({ startedAtMs, signal }: Sample, limit: number): Verdict | null {
    const { burstAtMs, floor } = this.#judged;
    if (startedAtMs > burstAtMs || signal === "timed_out" || limit <= floor) return null;
    this.#ceiling = limit - 1;
    return { limit: limit - 1, isNew: false };
  }

  /** The limit is the ceiling from now on, for a while. */
  hold(
    limit: number,
    cost: { nowMs: number; latencyMs: number; pauseMs: number; isOurs: boolean },
  ): void {
    const { nowMs, latencyMs, pauseMs, isOurs } = cost;
    const isSame = Math.abs(limit - this.#ceiling) <= Math.max(1, 0.1 * limit);
    if (!isOurs && pauseMs === 0) this.#patience = SHARED_PATIENCE;
    else this.#patience = isSame ? Math.min(MAX_PATIENCE, 2 * this.#patience) : 1;
    this.#ceiling = limit;
    const waitMs = LATENCIES_PER_PROBE * latencyMs + pauseMs / PROBE_SHARE;
    this.#waitUntilMs = nowMs + this.#patience * waitMs;
  }
}
