/** The outbox: events are written with the final status of a batch, and removed once the webhooks have them. */

import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import { webhookDeliveryFromClaimedRow } from "../rows.ts";
import type {
  Announcement,
  HeldWebhookDelivery,
  WebhookDelivery,
  WebhookDeliveryStore,
} from "../webhook-deliveries.ts";
import type { Db } from "./database.ts";
import { and, eq, getTableColumns, inArray, placeholder, sql } from "./drizzle.ts";
import { type Bid, CLAIMED, claimValues, isFree, NO_LEASE } from "./leases.ts";
import { webhookDeliveries } from "./schema.ts";

type WebhookDeliveryClaim = Parameters<WebhookDeliveryStore["claimWebhookDeliveries"]>[0] & Bid;

/** The final status of a batch, and its time. */
export interface BatchEnd {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly createdAtMs: number;
}

const ofItsBatch = <T>(column: string) =>
  sql<T>`(select ${sql.identifier(column)} from batches where id = deliveries.batch_id)`;

const prepareStatements = (db: Db) => ({
  claim: db
    .update(webhookDeliveries)
    .set({
      leaseOwner: CLAIMED.leaseOwner,
      leaseExpiresAtMs: CLAIMED.leaseExpiresAtMs,
      attemptCount: sql`attempt_count + 1`,
    })
    .where(
      inArray(
        webhookDeliveries.sequence,
        sql`(
          select sequence from deliveries
          where next_attempt_at_ms <= ${placeholder("nowMs")} and ${isFree}
            and webhook not in (
              select webhook from deliveries where not ${isFree}
              group by webhook having count(*) >= ${placeholder("maxPerWebhook")})
            and not exists (
              select 1 from batches where id = deliveries.batch_id
                and project in (select value from json_each(${placeholder("passedOver")})))
          order by next_attempt_at_ms, sequence limit ${placeholder("limit")})`,
      ),
    )
    .returning({
      ...getTableColumns(webhookDeliveries),
      project: ofItsBatch<string>("project"),
      totalCount: ofItsBatch<number>("total_count"),
      completedCount: ofItsBatch<number>("completed_count"),
      failedCount: ofItsBatch<number>("failed_count"),
    })
    .prepare(),
});

export class SqliteWebhookDeliveries {
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
        .insert(webhookDeliveries)
        .values({ ...end, webhookId, eventId, webhook, nextAttemptAtMs: end.createdAtMs })
        .run();
    }
  }

  claim({
    limit,
    maxPerWebhook,
    passedOver = [],
    ...claim
  }: WebhookDeliveryClaim): WebhookDelivery[] {
    const wanted = { limit, maxPerWebhook, passedOver: JSON.stringify(passedOver) };
    return (
      this.#statements.claim
        .all({ ...claimValues(claim), ...wanted })
        // SQLite returns updated rows in no particular order.
        .toSorted((a, b) => a.nextAttemptAtMs - b.nextAttemptAtMs || a.sequence - b.sequence)
        .map(webhookDeliveryFromClaimedRow)
    );
  }

  forget(webhookId: string): void {
    this.#db.delete(webhookDeliveries).where(eq(webhookDeliveries.webhookId, webhookId)).run();
  }

  postponeIfHeld({ webhookId, owner }: HeldWebhookDelivery, atMs: number): void {
    this.#db
      .update(webhookDeliveries)
      .set({ nextAttemptAtMs: atMs, ...NO_LEASE })
      .where(
        and(eq(webhookDeliveries.webhookId, webhookId), eq(webhookDeliveries.leaseOwner, owner)),
      )
      .run();
  }
}
