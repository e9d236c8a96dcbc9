/**
 * Finds where a target refuses, and decides when to try again beyond that ceiling.
 *
 * Refusals fill a leaky bucket. Scattered errors leak away. A full target makes the bucket overflow at once, because
 * each refused request is replaced and refused again. A whole burst is therefore one event.
 *
 * The burst tells the ceiling, within two bounds. The requests that were present and not refused are too many: some
 * reach the target after it has served others. The requests that started before a refused one may be too few: others
 * overtake them.
 *
 * A probe beyond a known ceiling costs as much as its refusal, which is the pause that the target asks for. The wait
 * before a probe is therefore a multiple of that pause. The wait grows each time the ceiling is found where it was.
 */
import { areClose } from "./level.ts";
import { type Sample, SLACK_MS } from "./round.ts";
import { StrayRefusals } from "./stray-refusals.ts";

/** The number of answers that make up for one refusal: up to 4 % of errors never overflow. */
const ANSWERS_PER_REFUSAL = 25;
/** Chance does not gather so many refusals. Beyond a level that is known to be good, fewer are proof. */
const OVERFLOW = { known: 6, probe: 2 };
/** A refusal with a pause counts for more: the server knows when to come back. */
const WEIGHT_WITH_PAUSE = 2;
/** Below this part of the requests, stray refusals leak away by themselves, and one in a probe is proof. */
const STRAY = 0.01;
/** So many times as many as are known to be stray leak away. */
const STRAY_MARGIN = 2;
/** Pauses after probes may take this part of the time. */
const PROBE_SHARE = 0.03;
/** A longer pause is about a quota rather than about requests in flight, and must not keep the limit down for weeks. */
const MAX_PAUSE_MS = 2 * 60 * 1000;
/** The wait between probes without a pause, in latencies: refused requests stay far below one in a hundred. */
const LATENCIES_PER_PROBE = 20;
/** The number of times that the wait doubles while the ceiling stays. */
const MAX_PATIENCE = 4;

/** Refusals of one moment, and what they tell about the ceiling. */
class Burst {
  readonly #startMs: number;
  readonly #present: number;
  #refused = 0;
  /** The counts are in ascending order. */
  readonly #ahead: number[] = [];
  #lastMs = 0;

  constructor({ endedAtMs, inFlight }: Sample) {
    this.#startMs = endedAtMs;
    this.#present = inFlight;
  }

  note({ startedAtMs, endedAtMs, ahead }: Sample): void {
    if (startedAtMs <= this.#startMs) this.#refused++;
    const at = this.#ahead.findIndex((each) => each > ahead);
    this.#ahead.splice(at === -1 ? this.#ahead.length : at, 0, ahead);
    this.#lastMs = endedAtMs;
  }

  /** The requests that were present at the first refusal, less the refused ones. */
  get most(): number {
    return this.#present - this.#refused;
  }

  /** The requests ahead of a refused one, in the middle: some overtake others on their way. */
  get middle(): number {
    return this.#ahead[this.#ahead.length >> 1] ?? 0;
  }

  /** Whether answers that end then were not on their way already when the last request was refused. */
  isOverAt(nowMs: number): boolean {
    return nowMs > this.#lastMs + SLACK_MS;
  }
}

interface Judged {
  readonly atMs: number;
  readonly burst: Burst;
  /** The burst may not take the limit out of these. */
  readonly floor: number;
  readonly limit: number;
  readonly hasPause: boolean;
  /** The requests that the target had certainly accepted; null until the burst is over. */
  accepted: number | null;
  /** The answers to requests that were sent since. */
  answers: number;
}

export interface Verdict {
  readonly limit: number;
  /** The flag is false when the sample belongs to the burst that was judged before. */
  readonly isNew: boolean;
}

export class Refusals {
  #bucket = 0;
  #burst: Burst | null = null;
  #judged: Judged | null = null;
  #ceiling = Number.POSITIVE_INFINITY;
  #waitUntilMs = Number.NEGATIVE_INFINITY;
  #patience = 1;
  readonly #stray = new StrayRefusals();

  /** Returns another limit when the answer shows that a burst was judged too low. */
  noteAnswer({ startedAtMs, endedAtMs, inFlight }: Sample, limit: number): Verdict | null {
    const strayLeak = STRAY_MARGIN * WEIGHT_WITH_PAUSE * this.#stray.part;
    this.#bucket = Math.max(0, this.#bucket - Math.max(1 / ANSWERS_PER_REFUSAL, strayLeak));
    if (this.#bucket === 0) this.#burst = null;
    const judged = this.#judged;
    if (judged !== null && startedAtMs > judged.atMs) judged.answers++;
    if (judged?.hasPause !== true || judged.accepted !== null) return null;
    if (!judged.burst.isOverAt(endedAtMs)) return null;
    // No request has started since, so all that are in flight were accepted.
    judged.accepted = startedAtMs <= judged.atMs ? inFlight : 0;
    return this.#correct(judged, limit);
  }

  /** Counts a request at a limit that is not an experiment. */
  count(signal: Sample["signal"], limit: number): void {
    this.#stray.note(signal === "overloaded", limit);
  }

  /** Returns the highest limit to go to. */
  mostAt(nowMs: number): number {
    return nowMs < this.#waitUntilMs ? this.#ceiling : Number.POSITIVE_INFINITY;
  }

  /** Whether the target refuses more than this limit. */
  isAt(limit: number): boolean {
    return limit >= this.#ceiling;
  }

  /**
   * Returns another limit once the bucket overflows. `proven` is a limit that the target has taken; null without a
   * probe.
   */
  note(sample: Sample, limit: number, proven: number | null): Verdict | null {
    const { startedAtMs, endedAtMs, signal, pauseMs } = sample;
    if (startedAtMs <= (this.#judged?.atMs ?? Number.NEGATIVE_INFINITY))
      return this.#noteLate(sample, limit);
    this.#burst ??= new Burst(sample);
    const burst = this.#burst;
    burst.note(sample);
    this.#bucket += pauseMs > 0 ? WEIGHT_WITH_PAUSE : 1;
    const isProbe = proven !== null || !this.#isProven(limit);
    if (this.#bucket < (isProbe && this.#stray.part < STRAY ? OVERFLOW.probe : OVERFLOW.known))
      return null;
    this.#stray.limitFell(limit);
    // Requests that waited too long all time out together, which says nothing about the right number.
    const floor = signal === "timed_out" ? Math.ceil(limit / 2) : Math.min(limit, proven ?? 1);
    const hasPause = pauseMs > 0;
    this.#judged = { atMs: endedAtMs, burst, floor, limit, hasPause, accepted: null, answers: 0 };
    this.#bucket = 0;
    this.#burst = null;
    return { limit: limitOf(this.#judged), isNew: true };
  }

  /** A limit that is too high by one costs a pause for each refusal, so it must not take many of them to fall again. */
  #isProven(limit: number): boolean {
    return this.#judged?.hasPause !== true || this.#judged.answers >= 2 * limit;
  }

  #noteLate(sample: Sample, limit: number): Verdict | null {
    if (this.#judged === null || sample.signal === "timed_out") return null;
    this.#judged.burst.note(sample);
    return this.#correct(this.#judged, limit);
  }

  #correct(judged: Judged, limit: number): Verdict | null {
    const next = limitOf(judged);
    // Without a pause the burst goes on, and the limit only falls.
    if (next === limit || (next > limit && !judged.hasPause)) return null;
    this.#ceiling = next;
    return { limit: next, isNew: false };
  }

  /** Takes the limit as the ceiling from now on, for a while. */
  hold(
    limit: number,
    { nowMs, latencyMs, pauseMs }: { nowMs: number; latencyMs: number; pauseMs: number },
  ): void {
    this.#patience = areClose(this.#ceiling, limit)
      ? Math.min(MAX_PATIENCE, 2 * this.#patience)
      : 1;
    this.#ceiling = limit;
    const waitMs = LATENCIES_PER_PROBE * latencyMs + Math.min(pauseMs, MAX_PAUSE_MS) / PROBE_SHARE;
    this.#waitUntilMs = nowMs + pauseMs + this.#patience * waitMs;
  }
}

/**
 * The upper bound counts without a pause, because one more refusal costs little then. The lower one counts with a
 * pause, or the number of requests that were served after it if that is higher.
 */
function limitOf({ burst, floor, limit, hasPause, accepted }: Judged): number {
  const ceiling = hasPause ? Math.max(burst.middle, accepted ?? 0) : burst.most;
  return Math.min(limit, Math.max(floor, ceiling));
}
