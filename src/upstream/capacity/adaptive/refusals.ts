/**
 * Finds where a target refuses, and decides when to try again beyond that ceiling.
 *
 * Refusals fill a leaky bucket. Scattered errors leak away. A full target makes the bucket overflow at once, because
 * each refused request is replaced and refused again. The overflow tells the ceiling: the requests in flight at the
 * first refusal, less those of them that were refused. A whole burst is therefore one event.
 *
 * A probe beyond a known ceiling costs as much as its refusal, which is the pause that the target asks for. The wait
 * before a probe is therefore a multiple of that pause. The wait grows each time the ceiling is found where it was.
 */
import type { Sample } from "./round.ts";

/** So many answers make up for one refusal: up to 4 % of errors never overflow. */
const ANSWERS_PER_REFUSAL = 25;
/** Chance does not gather so many refusals. Beyond a level that is known to be good, fewer are proof. */
const OVERFLOW = { known: 6, probe: 2 };
/** A refusal with a pause counts for more: the server knows when to come back. */
const WEIGHT_WITH_PAUSE = 2;
/** Pauses after probes may take this part of the time. */
const PROBE_SHARE = 0.03;
/** The wait between probes without a pause, in latencies: refused requests stay far below one in a hundred. */
const LATENCIES_PER_PROBE = 20;
/** A limit within this factor of the ceiling is still held by it. */
const NEAR = 1.2;
/** The number of times that the wait doubles while the ceiling stays. */
const MAX_PATIENCE = 4;
/**
 * A refusal without a probe comes from other clients that grow. The wait is then short, so that all shares become
 * equal.
 */
const SHARED_PATIENCE = 0.25;

interface Judged {
  readonly atMs: number;
  readonly burstAtMs: number;
  /** The burst may not take the limit below this. */
  readonly floor: number;
}

export interface Verdict {
  readonly limit: number;
  /** The flag is false when the sample belongs to the burst that was judged before. */
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

  /** Returns the highest limit to go to from `limit`: never past the ceiling in one step. */
  mostAt(nowMs: number, limit: number): number {
    const isBelow = limit < this.#ceiling;
    return isBelow || nowMs < this.#waitUntilMs ? this.#ceiling : Number.POSITIVE_INFINITY;
  }

  /** Whether the target refuses at about this limit. */
  isNear(limit: number): boolean {
    return NEAR * limit >= this.#ceiling && limit <= NEAR * this.#ceiling;
  }

  /**
   * Returns another limit once the bucket overflows. `proven` is a limit that the target has taken; null without a
   * probe.
   */
  note(sample: Sample, limit: number, proven: number | null): Verdict | null {
    const { startedAtMs, endedAtMs, signal, inFlight, pauseMs } = sample;
    if (startedAtMs <= this.#judged.atMs) return this.#noteLate(sample, limit);
    this.#burst ??= { atMs: endedAtMs, inFlight, refused: 0 };
    if (startedAtMs <= this.#burst.atMs) this.#burst.refused++;
    this.#bucket += pauseMs > 0 ? WEIGHT_WITH_PAUSE : 1;
    if (this.#bucket < (proven === null ? OVERFLOW.known : OVERFLOW.probe)) return null;
    const { atMs: burstAtMs, refused, inFlight: present } = this.#burst;
    // Requests that waited too long all time out together, which says nothing about the right number.
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

  /** Takes the limit as the ceiling from now on, for a while. */
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
