/**
 * The part of the store for deliveries, which take the results of a batch to a place outside. A delivery that a batch was
 * created with is stored in the commit that creates the batch, and is due in the commit that makes the batch final. One
 * that is asked for later is due at once. Its row stays as long as the batch, as its history.
 *
 * A due delivery is claimed with a lease and an epoch, as a chunk is, and every write of its holder names the epoch.
 */
import type { Batch, ScopedId, StoredFile, UntrustedId } from "../batch/batch.ts";
import type { Delivery, DeliveryError, DeliveryId, DeliveryOrder } from "../batch/delivery.ts";
import type { BatchStatus } from "../contract/batch.ts";
import type { Claim } from "./claim.ts";
import type { Receipt } from "./idempotency.ts";
import type { Page } from "./page.ts";

/** A delivery that a client asks for. */
export interface NewDelivery extends DeliveryOrder {
  readonly id: DeliveryId;
  /** The name of the place, of which a batch may have one unfinished delivery: see `destinationOf`. */
  readonly destination: string;
  /** The credentials of the client, encrypted; null without any. They are deleted when the delivery ends. */
  readonly credentials: string | null;
  readonly createdAtMs: number;
}

export interface DeliveryClaim extends Claim {
  /** The destinations that take no more deliveries at the moment. */
  readonly busyDestinations: readonly string[];
  /** Whether deliveries to buckets of clients may be claimed. */
  readonly toClientBuckets: boolean;
  /** The projects that have no room for more deliveries to buckets of clients. */
  readonly busyProjects: readonly string[];
  /** The projects that have had their turn. */
  readonly passedOver: readonly string[];
}

export interface DeliveryLease {
  readonly deliveryId: DeliveryId;
  readonly epoch: number;
}

/** A claimed delivery, with all that its holder needs. */
export interface ClaimedDelivery {
  readonly lease: DeliveryLease;
  /** `attemptCount` counts the attempt of this claim. */
  readonly delivery: Delivery;
  readonly destination: string;
  readonly batch: Batch;
  /** The results. A file may be deleted for clients: its bytes stay until the delivery ends. */
  readonly output: StoredFile | null;
  readonly error: StoredFile | null;
  readonly credentials: string | null;
  /** What an earlier attempt left for this one. */
  readonly progress: string | null;
}

export type DeliveryEnd =
  | { readonly status: "delivered"; readonly address: string }
  | { readonly status: "failed"; readonly error: DeliveryError };

/** What became of a delivery that was asked for. */
export type DeliveryInsertion =
  | { readonly kind: "stored" }
  | { readonly kind: "no_batch" }
  /** The batch has no results, or none yet. */
  | { readonly kind: "no_results"; readonly status: BatchStatus }
  | { readonly kind: "files_deleted" }
  /** Another delivery of the batch to this place has not ended. */
  | { readonly kind: "under_way" };

/** What became of a delivery that its holder tried to keep. */
export type DeliveryRenewal =
  | "renewed"
  /** The lease is renewed, and the client has asked to end the delivery. */
  | "cancelled"
  | "lost";

export interface NextAttempt {
  /** The time until it begins. */
  readonly ms: number;
  /** The longest time that it may begin after the delivery was first due. */
  readonly withinMs: number;
  /** Why the attempt before it failed. */
  readonly error: DeliveryError;
}

export type DeliveryPostponement = "postponed" | "too_late" | "cancelled" | "lost";

/** What became of a delivery that was to be cancelled. */
export type DeliveryCancellation =
  /** It is over. */
  | "ended"
  /** Its holder, or the next one, ends it when it has removed what the attempts have left. */
  | "asked";

export interface DeliveryQuery {
  readonly batch: ScopedId<"batch">;
  readonly limit: number;
  readonly after: UntrustedId<"delivery"> | null;
}

/** The error of the deliveries of a batch that failed. */
export const BATCH_FAILED: DeliveryError = {
  code: "batch_failed",
  message: "The batch failed and has no results.",
};

export interface DeliveryStore {
  /** Stores a delivery of a final batch, due at once, with the receipt of its idempotency key, if it came with one. */
  insertDeliveryIfFinal(
    batch: ScopedId<"batch">,
    delivery: NewDelivery,
    receipt?: Receipt,
  ): Promise<DeliveryInsertion>;
  /** Lists the deliveries of a batch, the newest first. Returns null when `after` names none of them. */
  listDeliveries(query: DeliveryQuery): Promise<Page<Delivery> | null>;
  findDelivery(batch: ScopedId<"batch">, id: UntrustedId<"delivery">): Promise<Delivery | null>;
  /**
   * Ends a delivery that nothing works on and that has left nothing at its place. Another one gets the error
   * `CANCELLED`, and its holder a nudge. Returns null when there is no such unfinished delivery.
   */
  cancelDeliveryIfOpen(
    batch: ScopedId<"batch">,
    id: UntrustedId<"delivery">,
  ): Promise<DeliveryCancellation | null>;
  /**
   * Leases the delivery that is due longest, and counts its attempt; null when none is due. Deliveries to
   * `busyDestinations` wait, so that a slow place holds up no other, and so do those to buckets of clients without
   * `toClientBuckets`, or of `busyProjects`. None of a project that is passed over is claimed.
   */
  claimDelivery(claim: DeliveryClaim): Promise<ClaimedDelivery | null>;
  renewDeliveryIfLeased(lease: DeliveryLease, ttlMs: number): Promise<DeliveryRenewal>;
  saveDeliveryProgressIfLeased(lease: DeliveryLease, progress: string): Promise<boolean>;
  /** Gives a delivery back at once, as if its attempt had not begun. */
  releaseDeliveryIfLeased(lease: DeliveryLease): Promise<boolean>;
  /**
   * Gives a delivery back for another attempt. Returns `too_late` and changes nothing when that would be too long after the
   * delivery was first due, and `cancelled` when the client has asked to end it.
   */
  postponeDeliveryIfLeased(lease: DeliveryLease, next: NextAttempt): Promise<DeliveryPostponement>;
  /** Ends a delivery, and deletes its credentials. */
  endDeliveryIfLeased(lease: DeliveryLease, end: DeliveryEnd): Promise<boolean>;
  /**
   * Makes the deliveries of final batches due that a replica of an older version has ended, which knew of none. Returns
   * the number of these batches, up to `limit`.
   */
  settleOverlookedDeliveries(limit: number): Promise<number>;
}
