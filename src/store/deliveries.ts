/**
 * The part of the store that remembers what is still to be told: an outbox. A delivery is written in the
 * commit that makes its batch final, and is there until it was delivered or given up.
 */
import type { BatchId, Counts } from "../batch/batch.ts";
import type { BatchStatus } from "../contract/batch.ts";
import type { Claim } from "./claim.ts";

/** Where and what to tell about a batch once it is final; the type follows from its final status. */
export interface Announcement {
  readonly webhookId: string;
  readonly eventId: string;
  /** Name of the configured webhook. */
  readonly webhook: string;
}

/** One event on its way to one webhook. */
export interface Delivery {
  readonly webhookId: string;
  readonly eventId: string;
  readonly webhook: string;
  readonly batchId: BatchId;
  /** The final status of the batch: the event is `batch.<status>`. */
  readonly status: BatchStatus;
  /** Of the lines of the batch. */
  readonly counts: Counts;
  /** When the batch became final. */
  readonly createdAtMs: number;
  /** Attempts begun before this claim. */
  readonly attemptCount: number;
}

export interface DeliveryStore {
  /**
   * Leases deliveries that are due, longest due first, and counts an attempt for each. Those to a webhook among
   * `busyWebhooks` wait, so that a slow one holds up no other. A new delivery is due at once; one whose claimer
   * is gone is due again when its lease has run out, with that attempt counted.
   */
  claimDeliveries(
    claim: Claim & { readonly limit: number; readonly busyWebhooks: readonly string[] },
  ): Promise<Delivery[]>;
  /** Delivered, or given up: either way the delivery is over. */
  forgetDelivery(webhookId: string): Promise<void>;
  /** Makes a claimed delivery due again after `ms`. */
  postponeDelivery(webhookId: string, ms: number): Promise<void>;
}
