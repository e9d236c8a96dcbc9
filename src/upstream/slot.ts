/**
 * A request for a slot, and the slot that it gets: the right to one request in flight at one target. A slot must be
 * released however its request ends, or the target has one less for ever.
 */
import type { Flow } from "../batch/fair-queue.ts";
import type { Lane, Limiter } from "./capacity/limiter.ts";
import type { Reservation } from "./capacity/rate/quota.ts";
import type { UpstreamRequest } from "./request.ts";
import type { LineSender } from "./upstream.ts";

/** A request that asks for a slot before each of its attempts. */
export class SlotRequest<Target> {
  readonly lane: Lane;
  readonly request: UpstreamRequest;
  /** The batch that a line counts for; null for interactive requests, and for lines that count for none. */
  readonly flow: Flow | null;
  /** The place among the lines of a batch that avoid no target, lowest first; infinite for lines that are sent again. */
  rank: number;
  /** The targets at which the request has failed. A line avoids them if it can; an interactive request must. */
  avoided: readonly Target[] = [];

  constructor(
    lane: Lane,
    request: UpstreamRequest,
    sender: Pick<LineSender, "flow" | "rank"> | null = null,
  ) {
    this.lane = lane;
    this.request = request;
    this.flow = sender?.flow ?? null;
    this.rank = sender?.rank ?? Number.POSITIVE_INFINITY;
  }

  /** An estimate of all tokens, those of the answer included. */
  get tokens(): number {
    const { inputTokens, answerTokens } = this.request;
    return inputTokens + answerTokens;
  }
}

/** The right to one request in flight at `target`, with its reservation of the rate limit. */
export class Slot<Target extends { readonly limiter: Limiter }> {
  readonly target: Target;
  readonly request: SlotRequest<Target>;
  readonly reservation: Reservation | null;
  readonly waitedMs: number;
  #isHeld = true;

  constructor(
    target: Target,
    request: SlotRequest<Target>,
    taken: { readonly reservation: Reservation | null; readonly waitedMs: number },
  ) {
    this.target = target;
    this.request = request;
    this.reservation = taken.reservation;
    this.waitedMs = taken.waitedMs;
  }

  /** Gives the slot back. Further calls do nothing. */
  release(): void {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    this.target.limiter.release(this.request.lane);
  }
}
