/** The outbox: events are written with the final status of a batch, and removed once the webhooks have them. */

import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import { claimedWebhookDelivery } from "../claimed-rows.ts";
import type {
  Announcement,
  DueWebhook,
  HeldWebhookDelivery,
  WebhookDeliveryClaim,
  WebhookDeliveryStore,
} from "../webhook-deliveries.ts";
import { type Db, type Now, writeUnsynced } from "./database.ts";
import { and, eq, getTableColumns, placeholder, type SQL, sql } from "./drizzle.ts";
import { CLAIMED, claimValues, isFree, NO_LEASE } from "./leases.ts";
import { webhookDeliveries } from "./schema.ts";

/** The final status of a batch, and its time. */
export interface BatchEnd {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly createdAtMs: number;
}

const ofItsBatch = <T>(column: string) =>
  sql<T>`(select ${sql.identifier(column)} from batches where id = deliveries.batch_id)`;

const isDue = sql`next_attempt_at_ms <= ${placeholder("nowMs")} and ${isFree}`;
const isForWebhook = sql`webhook = ${placeholder("webhook")}`;
const leasedCount = (isForIt: SQL): SQL<number> => sql<number>`(
  select count(*) from deliveries indexed by deliveries_claimed
  where ${isForIt} and lease_expires_at_ms > ${placeholder("nowMs")})`;

/** Goes through an index from each webhook to the next. */
const dueWebhooks = sql`
  with recursive names(webhook) as (
    select min(webhook) from deliveries indexed by deliveries_by_webhook
    union all
    select (
      select min(webhook) from deliveries indexed by deliveries_by_webhook
      where webhook > names.webhook)
    from names where webhook is not null)
  select webhook, ${leasedCount(sql`webhook = names.webhook`)} as leased_count, (
    select next_attempt_at_ms from deliveries indexed by deliveries_by_webhook
    where webhook = names.webhook and ${isDue}
    order by next_attempt_at_ms, sequence limit 1) as due_at_ms
  from names where webhook is not null`;

/** The projects that one claim looks at. Each costs two looks into an index. */
const MAX_TURNS = 100;

/** Goes through an index from each project to the next, up to one with a delivery that is due. */
const turnOf = (isFirst: SQL) => sql`
  select sequence from (
    with recursive turns(project, number) as (
      select (
        select min(project) from deliveries indexed by deliveries_by_project
        where ${isForWebhook} and ${isFirst}), 1
      union all
      select (
        select min(project) from deliveries indexed by deliveries_by_project
        where ${isForWebhook} and project > turns.project), number + 1
      from turns where project is not null and number < ${sql.raw(String(MAX_TURNS))})
    select (
      select sequence from deliveries indexed by deliveries_by_project
      where ${isForWebhook} and project = turns.project and ${isDue}
      order by next_attempt_at_ms, sequence limit 1) as sequence
    from turns where project is not null)
  where sequence is not null limit 1`;

/** The last one serves a webhook with very many projects, each of which waits for a later attempt. */
const nextDelivery = sql`coalesce(
  (${turnOf(sql`project > ${placeholder("afterProject")}`)}),
  (${turnOf(sql`true`)}),
  (select sequence from deliveries indexed by deliveries_by_webhook
   where ${isForWebhook} and ${isDue} order by next_attempt_at_ms, sequence limit 1))`;

const prepareStatements = (db: Db) => ({
  listDue: db
    .select({ webhook: sql<string>`webhook`, leasedCount: sql<number>`leased_count` })
    .from(sql`(${dueWebhooks})`)
    .where(sql`due_at_ms is not null`)
    .orderBy(sql`leased_count, due_at_ms`)
    .prepare(),
  claim: db
    .update(webhookDeliveries)
    .set({
      leaseOwner: CLAIMED.leaseOwner,
      leaseExpiresAtMs: CLAIMED.leaseExpiresAtMs,
      attemptCount: sql`attempt_count + 1`,
    })
    .where(
      sql`${leasedCount(isForWebhook)} < ${placeholder("maxLeased")} and sequence = ${nextDelivery}`,
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

export class SqliteWebhookDeliveries implements WebhookDeliveryStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
    this.#statements = prepareStatements(db);
  }

  /** Takes part in the transaction that ends the batch, so an event exists if, and only if, its batch is final. */
  insert(announcements: readonly Announcement[], end: BatchEnd): void {
    const project = sql`(select project from batches where id = ${end.batchId})`;
    for (const { webhookId, eventId, webhook } of announcements) {
      this.#db
        .insert(webhookDeliveries)
        .values({ ...end, project, webhookId, eventId, webhook, nextAttemptAtMs: end.createdAtMs })
        .run();
    }
  }

  async listDueWebhooks(): Promise<DueWebhook[]> {
    const nowMs = this.#now();
    return this.#statements.listDue.all({ nowMs });
  }

  async claimWebhookDelivery({ webhook, maxLeased, afterProject, ...claim }: WebhookDeliveryClaim) {
    const wanted = { webhook, maxLeased, afterProject };
    const values = { ...claimValues(claim, this.#now()), ...wanted };
    const row = writeUnsynced(this.#db, () => this.#statements.claim.get(values));
    return row === undefined ? null : claimedWebhookDelivery(row);
  }

  async forgetWebhookDelivery(webhookId: string): Promise<void> {
    this.#db.delete(webhookDeliveries).where(eq(webhookDeliveries.webhookId, webhookId)).run();
  }

  async postponeWebhookDeliveryIfHeld(
    { webhookId, owner }: HeldWebhookDelivery,
    ms: number,
  ): Promise<void> {
    const nextAttemptAtMs = this.#now() + ms;
    const isHeld = and(
      eq(webhookDeliveries.webhookId, webhookId),
      eq(webhookDeliveries.leaseOwner, owner),
    );
    writeUnsynced(this.#db, () =>
      this.#db
        .update(webhookDeliveries)
        .set({ nextAttemptAtMs, ...NO_LEASE })
        .where(isHeld)
        .run(),
    );
  }
}
