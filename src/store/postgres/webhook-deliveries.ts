/** The outbox: events are written with the final status of a batch, and removed once the webhooks have them. */

import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import { claimedWebhookDelivery } from "../claimed-rows.ts";
import type {
  Announcement,
  DueWebhook,
  HeldWebhookDelivery,
  WebhookDelivery,
  WebhookDeliveryClaim,
  WebhookDeliveryStore,
} from "../webhook-deliveries.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, getTableColumns, type SQL, sql } from "./drizzle.ts";
import { type Bid, heldBy, isFree, later, NO_LEASE } from "./leases.ts";
import { lockWebhooks } from "./project-locks.ts";
import { webhookDeliveries } from "./schema.ts";

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
      project: sql`(select project from batches where id = ${end.batchId})`,
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

const isDue = (now: SQL): SQL => sql`next_attempt_at_ms <= ${now} and ${isFree(now)}`;
const leasedCount = (isForIt: SQL, now: SQL): SQL =>
  sql`(select count(*) from deliveries where ${isForIt} and lease_expires_at_ms > ${now})`;

/** Goes through an index from each webhook to the next. */
const dueWebhooks = (now: SQL): SQL => sql`
  with recursive names(webhook) as (
    select min(webhook) from deliveries
    union all
    select (select min(webhook) from deliveries where webhook > names.webhook)
    from names where webhook is not null)
  select webhook, ${leasedCount(sql`webhook = names.webhook`, now)} as leased_count, (
    select next_attempt_at_ms from deliveries where webhook = names.webhook and ${isDue(now)}
    order by next_attempt_at_ms, sequence limit 1) as due_at_ms
  from names where webhook is not null`;

/** The projects that one claim looks at. Each costs two looks into an index. */
const MAX_TURNS = 100;

/** Goes through an index from each project to the next, up to one with a delivery that is due. */
const turnOf = (isForIt: SQL, isFirst: SQL, now: SQL): SQL => sql`
  select sequence from (
    with recursive turns(project, number) as (
      select (select min(project) from deliveries where ${isForIt} and ${isFirst}), 1
      union all
      select (
        select min(project) from deliveries where ${isForIt} and project > turns.project), number + 1
      from turns where project is not null and number < ${sql.raw(String(MAX_TURNS))})
    select (
      select sequence from deliveries
      where ${isForIt} and project = turns.project and ${isDue(now)}
      order by next_attempt_at_ms, sequence limit 1) as sequence
    from turns where project is not null) as found
  where sequence is not null limit 1`;

/** The last one serves a webhook with very many projects, each of which waits for a later attempt. */
function nextDelivery({ webhook, afterProject, now }: WebhookDeliveryClaim & Bid): SQL {
  const isForIt = sql`webhook = ${webhook}`;
  return sql`coalesce(
    (${turnOf(isForIt, sql`project > ${afterProject}`, now)}),
    (${turnOf(isForIt, sql`project >= ''`, now)}),
    (select sequence from deliveries where ${isForIt} and ${isDue(now)}
     order by next_attempt_at_ms, sequence limit 1))`;
}

export class PostgresWebhookDeliveries implements WebhookDeliveryStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async listDueWebhooks(): Promise<DueWebhook[]> {
    const now = this.#db.now();
    return this.#db.read((db) =>
      db
        .select({
          webhook: sql<string>`webhook`,
          leasedCount: sql`leased_count`.mapWith(Number),
        })
        .from(sql`(${dueWebhooks(now)}) as due`)
        .where(sql`due_at_ms is not null`)
        .orderBy(sql`leased_count, due_at_ms`),
    );
  }

  /**
   * Two claims at the same moment could both take the last place at a webhook. So a claim first waits for the others, and a
   * statement that begins afterwards sees what they took.
   */
  async claimWebhookDelivery(claim: WebhookDeliveryClaim): Promise<WebhookDelivery | null> {
    const bid = this.#db.timed(claim);
    const count = leasedCount(sql`webhook = ${bid.webhook}`, bid.now);
    const [row] = await this.#db.transaction(async (db) => {
      await lockWebhooks(db);
      return db
        .update(webhookDeliveries)
        .set({ ...heldBy(bid), attemptCount: sql`attempt_count + 1` })
        .where(sql`${count} < ${bid.maxLeased} and sequence = ${nextDelivery(bid)}`)
        .returning({
          ...getTableColumns(webhookDeliveries),
          project: ofItsBatch<string>("project"),
          totalCount: countOfItsBatch("total_count"),
          completedCount: countOfItsBatch("completed_count"),
          failedCount: countOfItsBatch("failed_count"),
        });
    });
    return row === undefined ? null : claimedWebhookDelivery(row);
  }

  async forgetWebhookDelivery(webhookId: string): Promise<void> {
    await this.#db.change((db) =>
      db.delete(webhookDeliveries).where(eq(webhookDeliveries.webhookId, webhookId)),
    );
  }

  async postponeWebhookDeliveryIfHeld(
    { webhookId, owner }: HeldWebhookDelivery,
    ms: number,
  ): Promise<void> {
    const nextAttemptAtMs = later(this.#db.now(), ms);
    await this.#db.change((db) =>
      db
        .update(webhookDeliveries)
        .set({ nextAttemptAtMs, ...NO_LEASE })
        .where(
          and(eq(webhookDeliveries.webhookId, webhookId), eq(webhookDeliveries.leaseOwner, owner)),
        ),
    );
  }
}
