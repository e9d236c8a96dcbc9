/**
 * The lease of one delivery, renewed while its attempt lasts. The signal aborts when the lease is lost: another process may
 * work on the delivery then, and nothing of this attempt may be written any more.
 */
import { type Delivery, isCancelled } from "../batch/delivery.ts";
import { type Cancel, type Clock, every } from "../clock.ts";
import type { ClaimedDelivery, DeliveryStore } from "../store/deliveries.ts";

/** A renewal that fails twice must not cost the lease. */
const RENEWALS_IN_TTL = 3;

/** The reason of an abort: the lease of the delivery was lost. */
export class LeaseLost extends Error {
  override readonly name = "LeaseLost";
}

/** The reason of an abort: the process drains. */
export class Draining extends Error {
  override readonly name = "Draining";
}

/** The reason of an abort: the place takes no bytes. */
export class Stalled extends Error {
  override readonly name = "Stalled";
}

/** The reason of an abort: the client has asked to end the delivery. */
export class Cancelled extends Error {
  override readonly name = "Cancelled";
}

export interface HeldDeliveryOptions {
  readonly store: DeliveryStore;
  readonly clock: Clock;
  readonly ttlMs: number;
}

export class HeldDelivery {
  readonly claimed: ClaimedDelivery;
  readonly #options: HeldDeliveryOptions;
  readonly #abort = new AbortController();
  readonly #cancelRenewals: Cancel;
  #renewedAtMs: number;
  #lastProgress: string | null;

  constructor(claimed: ClaimedDelivery, options: HeldDeliveryOptions) {
    this.claimed = claimed;
    this.#lastProgress = claimed.progress;
    this.#options = options;
    const { clock, ttlMs } = options;
    this.#renewedAtMs = clock.elapsedMs();
    this.#cancelRenewals = every(clock, ttlMs / RENEWALS_IN_TTL, () => void this.renew());
    if (isCancelled(claimed.delivery)) this.#abort.abort(new Cancelled());
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** What the attempts so far have left at the place; null if nothing. */
  get lastProgress(): string | null {
    return this.#lastProgress;
  }

  abort(reason: Draining | Stalled): void {
    this.#abort.abort(reason);
  }

  async saveProgress(text: string): Promise<void> {
    const { store } = this.#options;
    // What was begun is known before it is stored, so that it can be cleaned up in any case.
    this.#lastProgress = text;
    if (await store.saveDeliveryProgressIfLeased(this.claimed.lease, text)) return;
    this.#lose();
    throw this.signal.reason;
  }

  close(): void {
    this.#cancelRenewals();
  }

  /** Notices an end of the lease, and that the client has asked to end the delivery. */
  async renew(): Promise<void> {
    const { store, clock, ttlMs } = this.#options;
    const startedAtMs = clock.elapsedMs();
    try {
      const renewal = await store.renewDeliveryIfLeased(this.claimed.lease, ttlMs);
      if (renewal === "lost") return this.#lose();
      this.#renewedAtMs = startedAtMs;
      if (renewal === "cancelled") this.#abort.abort(new Cancelled());
    } catch {
      // The store is away. The lease counts as lost once it may have run out.
      if (clock.elapsedMs() - this.#renewedAtMs >= ttlMs) this.#lose();
    }
  }

  #lose(): void {
    this.#abort.abort(new LeaseLost());
  }
}

/** Buckets of clients have one label, because there may be any number of them. */
export const placeLabel = ({ location }: Delivery): string => location ?? "client_bucket";

/** The fields of a log event about a delivery. */
export const fieldsOf = ({ delivery, batch }: ClaimedDelivery) => ({
  delivery: delivery.id,
  batch: batch.id,
  project: batch.project,
  location: placeLabel(delivery),
  attempt: delivery.attemptCount,
});

/** Names an error whose text must not be passed on. */
export const nameOf = (error: unknown) => (error instanceof Error ? error.name : "unknown");
