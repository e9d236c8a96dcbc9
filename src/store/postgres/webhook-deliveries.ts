/** The outbox: events are written with the final status of a batch, and removed once the webhooks have them. */

import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import { webhookDeliveryFromClaimedRow } from "../rows.ts";
import type { Announcement, HeldWebhookDelivery, WebhookDelivery } from "../webhook-deliveries.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, getTableColumns, type SQL, sql } from "./drizzle.ts";
import { arrayOf, type Bid, heldBy, isFree, NO_LEASE } from "./leases.ts";
import { lockWebhooks } from "./project-locks.ts";
import { webhookDeliveries } from "./schema.ts";

type WebhookDeliveryClaim = Bid & {
  readonly limit: number;
  readonly maxPerWebhook: number;
  readonly passedOver?: readonly string[];
};

/** The final status of a batch, and its time. */
interface BatchEnd {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly createdAtMs: SQL;
}

/** Takes part in the transaction that ends the batch, so there are deliveries if, and only if, the batch is final. */
export async function insertWebhookDeliveries(
  db: Db,
  announcements: readonly Announcement[],
  end: BatchEnd,
): Promise<void> {
  if (announcements.length === 0) return;
  await db.insert(webhookDeliveries).values(
    announcements.map(({ webhookId, eventId, webhook }) => ({
      ...end,
      webhookId,
      eventId,
      webhook,
      nextAttemptAtMs: end.createdAtMs,
    })),
  );
}

const ofItsBatch = <T>(column: string) =>
  sql<T>`(select ${sql.identifier(column)} from batches where id = deliveries.batch_id)`;
const countOfItsBatch = (column: string) => ofItsBatch<number>(column).mapWith(Number);

export class PostgresWebhookDeliveries {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * Two claims at the same moment could both take the last place at a webhook. So a claim that may find something first waits
   * for the others, and a statement that begins afterwards sees what they took.
   */
  async claim({
    limit,
    maxPerWebhook,
    passedOver = [],
    ...claim
  }: WebhookDeliveryClaim): Promise<WebhookDelivery[]> {
    const { now } = claim;
    // Most claims pass no project over, and look at no batch.
    const isOfOthers =
      passedOver.length === 0
        ? sql`true`
        : sql`not exists (
            select 1 from batches where id = deliveries.batch_id
              and project = any(${arrayOf(passedOver, "text")}))`;
    const claimable = sql`
      select sequence from deliveries
      where next_attempt_at_ms <= ${now} and ${isFree(now)}
        and webhook not in (
          select webhook from deliveries where not ${isFree(now)}
          group by webhook having count(*) >= ${maxPerWebhook})
        and ${isOfOthers}
      order by next_attempt_at_ms, sequence limit ${limit}`;
    const look = await this.#db.read((db) => db.execute(claimable));
    if (look.rows.length === 0) return [];
    const claimed = await this.#db.transaction(async (db) => {
      await lockWebhooks(db);
      return db
        .update(webhookDeliveries)
        .set({ ...heldBy(claim), attemptCount: sql`attempt_count + 1` })
        .where(sql`sequence in (${claimable} for update skip locked)`)
        .returning({
          ...getTableColumns(webhookDeliveries),
          project: ofItsBatch<string>("project"),
          totalCount: countOfItsBatch("total_count"),
          completedCount: countOfItsBatch("completed_count"),
          failedCount: countOfItsBatch("failed_count"),
        });
    });
    // PostgreSQL returns updated rows in any order.
    return claimed
      .toSorted((a, b) => a.nextAttemptAtMs - b.nextAttemptAtMs || a.sequence - b.sequence)
      .map(webhookDeliveryFromClaimedRow);
  }

  async forget(webhookId: string): Promise<void> {
    await this.#db.change((db) =>
      db.delete(webhookDeliveries).where(eq(webhookDeliveries.webhookId, webhookId)),
    );
  }

  async postponeIfHeld({ webhookId, owner }: HeldWebhookDelivery, at: SQL): Promise<void> {
    await this.#db.change((db) =>
      db
        .update(webhookDeliveries)
        .set({ nextAttemptAtMs: at, ...NO_LEASE })
        .where(
          and(eq(webhookDeliveries.webhookId, webhookId), eq(webhookDeliveries.leaseOwner, owner)),
        ),
    );
  }
}
