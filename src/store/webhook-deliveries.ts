/**
 * The part of the store that remembers undelivered events: an outbox. A delivery is written in the commit that makes
 * its batch final, and stays until it was delivered or given up.
 */
import type { BatchId, Counts } from "../batch/batch.ts";
import type { BatchStatus } from "../contract/batch.ts";
import type { Claim } from "./claim.ts";

/** A webhook, and the event it is to get once a batch is final. The final status gives the type of the event. */
export interface Announcement {
  readonly webhookId: string;
  readonly eventId: string;
  /** The name of the configured webhook. */
  readonly webhook: string;
}

/** One event on its way to one webhook: a webhook delivery. */
export interface WebhookDelivery {
  readonly webhookId: string;
  readonly eventId: string;
  readonly webhook: string;
  readonly batchId: BatchId;
  /** The project of the batch. */
  readonly project: string;
  /** The final status of the batch: the event is `batch.<status>`. */
  readonly status: BatchStatus;
  /** The counts of the lines of the batch. */
  readonly counts: Counts;
  /** The time at which the batch became final. */
  readonly createdAtMs: number;
  /** The number of attempts begun before this claim. */
  readonly attemptCount: number;
}

/** A delivery that this process has claimed. */
export interface HeldWebhookDelivery {
  readonly webhookId: string;
  readonly owner: string;
}

/** A webhook with a delivery that is due. */
export interface DueWebhook {
  readonly webhook: string;
  /** The number of its deliveries that any process has leased. */
  readonly leasedCount: number;
}

export interface WebhookDeliveryClaim extends Claim {
  readonly webhook: string;
  readonly maxLeased: number;
  readonly afterProject: string;
}

export interface WebhookDeliveryStore {
  /** Lists the webhooks with a delivery that is due: those with the fewest leased ones first, then the one due longest. */
  listDueWebhooks(): Promise<DueWebhook[]>;
  /**
   * Leases a delivery to this webhook that is due, and counts an attempt. Returns null when none is due, or when `maxLeased`
   * of them are leased already, by any process: a slow webhook gets no more from many processes than from one.
   *
   * The projects take turns: it is the delivery due longest of the project that comes after this one by name, and after the
   * last one the first. A new delivery is due at once. A delivery whose claimer is gone is due again when its lease has run
   * out, with that attempt counted.
   */
  claimWebhookDelivery(claim: WebhookDeliveryClaim): Promise<WebhookDelivery | null>;
  /** Ends a delivery that was delivered or given up. */
  forgetWebhookDelivery(webhookId: string): Promise<void>;
  /**
   * Makes a claimed delivery due again after `ms`. It does nothing once another process has claimed the delivery: that
   * one may be sending.
   */
  postponeWebhookDeliveryIfHeld(held: HeldWebhookDelivery, ms: number): Promise<void>;
}
