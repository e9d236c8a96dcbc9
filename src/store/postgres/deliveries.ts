/** The outbox: events are written with the final status of a batch, and removed once the webhooks have them. */

import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import type { Announcement, Delivery, HeldDelivery } from "../deliveries.ts";
import { deliveryFromClaimedRow } from "../rows.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, getTableColumns, type SQL, sql } from "./drizzle.ts";
import { arrayOf, type Bid, heldBy, isFree, NO_LEASE } from "./leases.ts";
import { deliveries } from "./schema.ts";

type DeliveryClaim = Bid & { readonly limit: number; readonly busyWebhooks: readonly string[] };

/** The final status of a batch, and its time. */
interface BatchEnd {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly createdAtMs: SQL;
}

/** Takes part in the transaction that ends the batch, so there are deliveries if, and only if, the batch is final. */
export async function insertDeliveries(
  db: Db,
  announcements: readonly Announcement[],
  end: BatchEnd,
): Promise<void> {
  if (announcements.length === 0) return;
  await db.insert(deliveries).values(
    announcements.map(({ webhookId, eventId, webhook }) => ({
      ...end,
      ...{ webhookId, eventId, webhook },
      nextAttemptAtMs: end.createdAtMs,
    })),
  );
}

const ofItsBatch = (column: string) =>
  sql`(select ${sql.identifier(column)} from batches where id = deliveries.batch_id)`.mapWith(
    Number,
  );

export class PostgresDeliveries {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async claim({ limit, busyWebhooks, ...claim }: DeliveryClaim): Promise<Delivery[]> {
    const { now } = claim;
    const claimed = await this.#db.change((db) =>
      db
        .update(deliveries)
        .set({ ...heldBy(claim), attemptCount: sql`attempt_count + 1` })
        .where(
          sql`sequence in (
            select sequence from deliveries
            where next_attempt_at_ms <= ${now} and ${isFree(now)}
              and webhook <> all(${arrayOf(busyWebhooks, "text")})
            order by next_attempt_at_ms, sequence limit ${limit} for update skip locked)`,
        )
        .returning({
          ...getTableColumns(deliveries),
          totalCount: ofItsBatch("total_count"),
          completedCount: ofItsBatch("completed_count"),
          failedCount: ofItsBatch("failed_count"),
        }),
    );
    // PostgreSQL returns updated rows in any order.
    return claimed
      .toSorted((a, b) => a.nextAttemptAtMs - b.nextAttemptAtMs || a.sequence - b.sequence)
      .map(deliveryFromClaimedRow);
  }

  async forget(webhookId: string): Promise<void> {
    await this.#db.change((db) => db.delete(deliveries).where(eq(deliveries.webhookId, webhookId)));
  }

  async postponeIfHeld({ webhookId, owner }: HeldDelivery, at: SQL): Promise<void> {
    await this.#db.change((db) =>
      db
        .update(deliveries)
        .set({ nextAttemptAtMs: at, ...NO_LEASE })
        .where(and(eq(deliveries.webhookId, webhookId), eq(deliveries.leaseOwner, owner))),
    );
  }
}
