/**
 * The part of a target's configured limits that this replica has, because all replicas share them. The parts must never
 * add up to more than the operator allows, so a part is rounded down.
 */
import type { SlotShare } from "../../batch/slot-share.ts";
import type { UpstreamConfig } from "../../config/upstreams.ts";

/** With fewer slots than this, none is kept free for interactive requests unless the operator says so. */
const RESERVE_FROM_CONCURRENCY = 8;

const ROUNDING = 1e-6;

export class OwnLimits {
  #config: UpstreamConfig;
  /** The slots that this replica has, of those that all replicas share. */
  #slotCount = Number.POSITIVE_INFINITY;
  /** Its part of the schedule, from 0 to 1. */
  #fraction = 1;
  /** Its part of the rates. A replica without a slot keeps what it had, and uses nothing of it. */
  #rateFraction = 1;

  constructor(config: UpstreamConfig) {
    this.#config = config;
  }

  reconfigure(config: UpstreamConfig): void {
    this.#config = config;
  }

  /** Takes another part; returns false when it is the same. */
  setShare({ slotCount, fraction }: Pick<SlotShare, "slotCount" | "fraction">): boolean {
    if (slotCount === this.#slotCount && fraction === this.#fraction) return false;
    this.#slotCount = slotCount;
    this.#fraction = fraction;
    if (fraction > 0) this.#rateFraction = fraction;
    return true;
  }

  get slotCount(): number {
    return this.#slotCount;
  }

  /** The bounds of the concurrency, which is learned for all replicas. */
  get bounds(): { readonly min: number; readonly max: number } {
    return { min: this.#config.min_concurrency, max: this.#config.max_concurrency };
  }

  /** The part of the rates that this replica has; null for no limit. */
  get quota() {
    const { requests_per_minute: requests, tokens_per_minute: tokens } = this.#config;
    return { requestsPerMinute: this.#partOf(requests), tokensPerMinute: this.#partOf(tokens) };
  }

  /** The configured rates, which all replicas share; null for no limit. */
  get ratesOfAll() {
    const { requests_per_minute: requests = null, tokens_per_minute: tokens = null } = this.#config;
    return { requests, tokens };
  }

  /** Returns how many of so many slots lines may have, next to interactive requests. */
  slotsForLines(limit: number): number {
    return Math.min(limit, Math.max(1, limit - this.#slotsOf(this.reserve)));
  }

  /** The slots of all replicas that are kept free for interactive requests. */
  get reserve(): number {
    const { max_concurrency, interactive_reserve } = this.#config;
    return interactive_reserve ?? (max_concurrency < RESERVE_FROM_CONCURRENCY ? 0 : 1);
  }

  /** Returns the slots in a window of the schedule. One of few slots must not leave every replica without one. */
  slotsInWindow(scheduled: number): number {
    return scheduled === 0 ? 0 : Math.max(1, this.#slotsOf(scheduled));
  }

  #slotsOf(slotCount: number): number {
    // Without this a part such as 3/7 of 7 would be just below 3.
    return Math.floor(slotCount * this.#fraction + ROUNDING);
  }

  #partOf(limit: number | undefined): number | null {
    return limit === undefined ? null : limit * this.#rateFraction;
  }
}
