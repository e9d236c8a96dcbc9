/** The outbox: events are written with the final status of a batch, and removed once the webhooks have them. */

import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import type { Announcement, Delivery, DeliveryStore, HeldDelivery } from "../deliveries.ts";
import { deliveryFromClaimedRow } from "../rows.ts";
import type { Db } from "./database.ts";
import { and, eq, getTableColumns, inArray, placeholder, sql } from "./drizzle.ts";
import { type Bid, CLAIMED, claimValues, isFree, NO_LEASE } from "./leases.ts";
import { deliveries } from "./schema.ts";

type DeliveryClaim = Parameters<DeliveryStore["claimDeliveries"]>[0] & Bid;

/** The final status of a batch, and its time. */
export interface BatchEnd {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly createdAtMs: number;
}

const ofItsBatch = (column: string) =>
  sql<number>`(select ${sql.identifier(column)} from batches where id = deliveries.batch_id)`;

const prepareStatements = (db: Db) => ({
  claim: db
    .update(deliveries)
    .set({
      leaseOwner: CLAIMED.leaseOwner,
      leaseExpiresAtMs: CLAIMED.leaseExpiresAtMs,
      attemptCount: sql`attempt_count + 1`,
    })
    .where(
      inArray(
        deliveries.sequence,
        sql`(
          select sequence from deliveries
          where next_attempt_at_ms <= ${placeholder("nowMs")} and ${isFree}
            and webhook not in (select value from json_each(${placeholder("busyWebhooks")}))
          order by next_attempt_at_ms, sequence limit ${placeholder("limit")})`,
      ),
    )
    .returning({
      ...getTableColumns(deliveries),
      totalCount: ofItsBatch("total_count"),
      completedCount: ofItsBatch("completed_count"),
      failedCount: ofItsBatch("failed_count"),
    })
    .prepare(),
});

export class SqliteDeliveries {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  /** Takes part in the transaction that ends the batch, so an event exists if, and only if, its batch is final. */
  insert(announcements: readonly Announcement[], end: BatchEnd): void {
    for (const { webhookId, eventId, webhook } of announcements) {
      this.#db
        .insert(deliveries)
        .values({ ...end, webhookId, eventId, webhook, nextAttemptAtMs: end.createdAtMs })
        .run();
    }
  }

  claim({ limit, busyWebhooks, ...claim }: DeliveryClaim): Delivery[] {
    const wanted = { limit, busyWebhooks: JSON.stringify(busyWebhooks) };
    return (
      this.#statements.claim
        .all({ ...claimValues(claim), ...wanted })
        // SQLite returns updated rows in no particular order.
        .toSorted((a, b) => a.nextAttemptAtMs - b.nextAttemptAtMs || a.sequence - b.sequence)
        .map(deliveryFromClaimedRow)
    );
  }

  forget(webhookId: string): void {
    this.#db.delete(deliveries).where(eq(deliveries.webhookId, webhookId)).run();
  }

  postponeIfHeld({ webhookId, owner }: HeldDelivery, atMs: number): void {
    this.#db
      .update(deliveries)
      .set({ nextAttemptAtMs: atMs, ...NO_LEASE })
      .where(and(eq(deliveries.webhookId, webhookId), eq(deliveries.leaseOwner, owner)))
      .run();
  }
}
