/** Deliveries of results: asked for, claimed, and ended. `../deliveries.ts` has the promises. */
import type { Batch, BatchId, FileId, ScopedId, UntrustedId } from "../../batch/batch.ts";
import { CANCELLED, type Delivery, isCancelled } from "../../batch/delivery.ts";
import { isFinal } from "../../batch/status.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import { claimedDelivery } from "../claimed-rows.ts";
import {
  BATCH_FAILED,
  type ClaimedDelivery,
  type DeliveryCancellation,
  type DeliveryClaim,
  type DeliveryEnd,
  type DeliveryInsertion,
  type DeliveryLease,
  type DeliveryPostponement,
  type DeliveryQuery,
  type DeliveryRenewal,
  type DeliveryStore,
  type NewDelivery,
  type NextAttempt,
} from "../deliveries.ts";
import type { Receipt } from "../idempotency.ts";
import { type Page, pageOf } from "../page.ts";
import { deliveryFromRow, deliveryRow } from "../rows.ts";
import { isFinalBatch, isListed, isOpenDelivery, waitsForItsBatch } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { and, desc, eq, isNotNull, isNull, lt, or, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { recordReceipt } from "./idempotency.ts";
import { arrayOf, claimedBy, isFree, later, NO_LEASE } from "./leases.ts";
import { sendNudge } from "./nudges.ts";
import { batches } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";

type Row = typeof batchDeliveries.$inferSelect;

/** The end of a batch, as its deliveries see it. */
interface ResultsOfBatch {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly outputFileId: FileId | null;
  readonly errorFileId: FileId | null;
  readonly now: SQL;
}

const ENDED = { credentials: null, progress: null, nextAttemptAtMs: null, ...NO_LEASE } as const;

const isHeld = ({ deliveryId, epoch }: DeliveryLease) =>
  and(
    eq(batchDeliveries.id, deliveryId),
    eq(batchDeliveries.leaseEpoch, epoch),
    isNotNull(batchDeliveries.leaseOwner),
  );

/** Compares an id that a client wrote. The batch that the query also names is one of its project. */
const isAsked = (id: UntrustedId<"delivery">): SQL =>
  sql`${batchDeliveries.id} = ${sql.param(id, batchDeliveries.id)}`;

/** Stores the deliveries that a batch is created with, as a part of the transaction. */
export async function insertWaitingDeliveries(
  db: Db,
  batch: Batch,
  deliveries: readonly NewDelivery[],
): Promise<void> {
  if (deliveries.length === 0) return;
  await db.insert(batchDeliveries).values(deliveries.map((each) => deliveryRow(batch, each)));
}

/** Makes the deliveries of a batch due in the transaction that makes it final, or ends them with a failed batch. */
export async function settleDeliveries(
  db: Db,
  { batchId, status, now, ...results }: ResultsOfBatch,
): Promise<void> {
  const change =
    status === "failed"
      ? { ...ENDED, status: "failed" as const, error: BATCH_FAILED, endedAtMs: now }
      : { ...results, dueAtMs: now, nextAttemptAtMs: now };
  const { rowCount } = await db
    .update(batchDeliveries)
    .set(change)
    .where(and(eq(batchDeliveries.batchId, batchId), waitsForItsBatch));
  if (rowCount !== 0) await sendNudge(db, "delivery_due");
}

/**
 * Ends the deliveries of a batch that is deleted, in the same transaction. One that is under way, or has left something at its
 * place, is cancelled: its holder, or the next one, removes that.
 */
export async function endDeliveries(db: Db, batchId: BatchId, now: SQL): Promise<void> {
  const ofBatch = eq(batchDeliveries.batchId, batchId);
  const hasLeftNothing = and(isFree(now), isNull(batchDeliveries.progress));
  await db
    .delete(batchDeliveries)
    .where(and(ofBatch, or(sql`not (${isOpenDelivery})`, hasLeftNothing)));
  // One that ends meanwhile goes with the rows of the batch.
  const { rowCount } = await db
    .update(batchDeliveries)
    .set({ error: CANCELLED, nextAttemptAtMs: now })
    .where(and(ofBatch, isOpenDelivery));
  if (rowCount === 0) return;
  for (const nudge of ["delivery_due", "delivery_cancelled"] as const) await sendNudge(db, nudge);
}

/** Excludes deliveries of these projects. A look at the batch is for what older versions wrote. */
const isOfOthers = (projects: readonly string[]): SQL => sql`
  coalesce(
    nullif(batch_deliveries.project, ''), (select project from batches where id = batch_id)
  ) <> all(${arrayOf(projects, "text")})`;

export class PostgresDeliveries implements DeliveryStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /** The locks keep the batch and its files from being deleted before the commit. */
  insertDeliveryIfFinal(
    batch: ScopedId<"batch">,
    delivery: NewDelivery,
    receipt?: Receipt,
  ): Promise<DeliveryInsertion> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      const [found] = await db.select().from(batches).where(isScopedBatch(batch)).for("share");
      if (found === undefined) return { kind: "no_batch" };
      const { status, outputFileId, errorFileId } = found;
      if (!isFinal(status) || status === "failed") return { kind: "no_results", status };
      for (const file of [outputFileId, errorFileId]) {
        if (!(await holdFile(db, batch.project, file))) return { kind: "files_deleted" };
      }
      const due = { outputFileId, errorFileId, dueAtMs: now, nextAttemptAtMs: now };
      const { rowCount } = await db
        .insert(batchDeliveries)
        .values({ ...deliveryRow(found, delivery), ...due })
        .onConflictDoNothing();
      if (rowCount === 0) return { kind: "under_way" };
      if (receipt !== undefined) await recordReceipt(db, receipt);
      await sendNudge(db, "delivery_due");
      return { kind: "stored" };
    });
  }

  listDeliveries({ batch, limit, after }: DeliveryQuery): Promise<Page<Delivery> | null> {
    return this.#db.read(async (db) => {
      const batchId = await findBatchId(db, batch);
      if (batchId === null) return { data: [], hasMore: false };
      const ofBatch = eq(batchDeliveries.batchId, batchId);
      let before: SQL | undefined;
      if (after !== null) {
        const [cursor] = await db
          .select({ sequence: batchDeliveries.sequence })
          .from(batchDeliveries)
          .where(and(ofBatch, isAsked(after)));
        if (cursor === undefined) return null;
        before = lt(batchDeliveries.sequence, cursor.sequence);
      }
      const rows = await db
        .select()
        .from(batchDeliveries)
        .where(and(ofBatch, before))
        .orderBy(desc(batchDeliveries.sequence))
        .limit(limit + 1);
      return pageOf(rows, limit, deliveryFromRow);
    });
  }

  findDelivery(batch: ScopedId<"batch">, id: UntrustedId<"delivery">): Promise<Delivery | null> {
    return this.#db.read(async (db) => {
      const batchId = await findBatchId(db, batch);
      if (batchId === null) return null;
      const [row] = await db
        .select()
        .from(batchDeliveries)
        .where(and(eq(batchDeliveries.batchId, batchId), isAsked(id)));
      return row === undefined ? null : deliveryFromRow(row);
    });
  }

  async cancelDeliveryIfOpen(
    batch: ScopedId<"batch">,
    id: UntrustedId<"delivery">,
  ): Promise<DeliveryCancellation | null> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      const batchId = await findBatchId(db, batch);
      if (batchId === null) return null;
      const isOpen = and(eq(batchDeliveries.batchId, batchId), isAsked(id), isOpenDelivery);
      const [row] = await db
        .select({
          id: batchDeliveries.id,
          progress: batchDeliveries.progress,
          isFree: isFree(now).mapWith(Boolean),
        })
        .from(batchDeliveries)
        .where(isOpen)
        .for("update");
      if (row === undefined) return null;
      const hasEnded = row.isFree && row.progress === null;
      const change = hasEnded
        ? { ...ENDED, status: "failed" as const, endedAtMs: now }
        : { nextAttemptAtMs: now };
      await db
        .update(batchDeliveries)
        .set({ ...change, error: CANCELLED })
        .where(eq(batchDeliveries.id, row.id));
      if (hasEnded) return "ended";
      await sendNudge(db, row.isFree ? "delivery_due" : "delivery_cancelled");
      return "asked";
    });
  }

  async claimDelivery({
    busyDestinations,
    toClientBuckets,
    busyProjects,
    passedOver,
    ...claim
  }: DeliveryClaim): Promise<ClaimedDelivery | null> {
    const bid = this.#db.timed(claim);
    const { now } = bid;
    const [claimed] = await this.#db.change((db) =>
      db
        .update(batchDeliveries)
        .set({ ...claimedBy(bid), attemptCount: sql`attempt_count + 1` })
        .where(
          sql`sequence = (
            select sequence from batch_deliveries
            where next_attempt_at_ms <= ${now} and ${isFree(now)}
              and destination <> all(${arrayOf(busyDestinations, "text")})
              and (${toClientBuckets}::boolean or location is not null)
              and (location is not null or ${isOfOthers(busyProjects)})
              and ${isOfOthers(passedOver)}
            order by next_attempt_at_ms, sequence limit 1 for update skip locked)`,
        )
        .returning(),
    );
    return claimed === undefined ? null : this.#db.read((db) => withBatch(db, claimed));
  }

  async renewDeliveryIfLeased(lease: DeliveryLease, ttlMs: number): Promise<DeliveryRenewal> {
    const leaseExpiresAtMs = later(this.#db.now(), ttlMs);
    const [row] = await this.#db.change((db) =>
      db
        .update(batchDeliveries)
        .set({ leaseExpiresAtMs })
        .where(isHeld(lease))
        .returning({ error: batchDeliveries.error }),
    );
    if (row === undefined) return "lost";
    return isCancelled(row) ? "cancelled" : "renewed";
  }

  saveDeliveryProgressIfLeased(lease: DeliveryLease, progress: string): Promise<boolean> {
    return this.#change(lease, { progress });
  }

  releaseDeliveryIfLeased(lease: DeliveryLease): Promise<boolean> {
    return this.#change(lease, { attemptCount: sql`attempt_count - 1`, ...NO_LEASE });
  }

  postponeDeliveryIfLeased(
    lease: DeliveryLease,
    { ms, withinMs, error }: NextAttempt,
  ): Promise<DeliveryPostponement> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      const next = later(now, ms);
      const [held] = await db
        .select({
          error: batchDeliveries.error,
          isInTime: sql`${next} <= due_at_ms + ${withinMs}::bigint`.mapWith(Boolean),
        })
        .from(batchDeliveries)
        .where(isHeld(lease))
        .for("update");
      if (held === undefined) return "lost";
      if (isCancelled(held)) return "cancelled";
      if (!held.isInTime) return "too_late";
      await db
        .update(batchDeliveries)
        .set({ nextAttemptAtMs: next, error, ...NO_LEASE })
        .where(isHeld(lease));
      return "postponed";
    });
  }

  endDeliveryIfLeased(lease: DeliveryLease, end: DeliveryEnd): Promise<boolean> {
    const now = this.#db.now();
    const error = end.status === "failed" ? end.error : null;
    const address = end.status === "delivered" ? end.address : null;
    return this.#change(lease, { ...ENDED, status: end.status, error, address, endedAtMs: now });
  }

  /**
   * The array leads through the index of ids. With `in`, PostgreSQL reads all ended batches where many deliveries wait for
   * open ones.
   */
  settleOverlookedDeliveries(limit: number): Promise<number> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      const waiting = sql`select batch_id from batch_deliveries where ${waitsForItsBatch}`;
      const overlooked = await db
        .select()
        .from(batches)
        .where(and(sql`id = any(array(${waiting}))`, isFinalBatch))
        .orderBy(batches.sequence)
        .limit(limit)
        .for("share");
      for (const { id: batchId, status, outputFileId, errorFileId } of overlooked) {
        await settleDeliveries(db, { batchId, status, outputFileId, errorFileId, now });
      }
      return overlooked.length;
    });
  }

  async #change(lease: DeliveryLease, changed: Changed): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db.update(batchDeliveries).set(changed).where(isHeld(lease)),
    );
    return rowCount === 1;
  }
}

/** The values of columns, or expressions for them. */
type Changed = { readonly [Column in keyof Row]?: Row[Column] | SQL };

async function findBatchId(db: Db, batch: ScopedId<"batch">): Promise<BatchId | null> {
  const [found] = await db.select({ id: batches.id }).from(batches).where(isScopedBatch(batch));
  return found?.id ?? null;
}

async function holdFile(db: Db, project: string, id: FileId | null): Promise<boolean> {
  if (id === null) return true;
  const isPresent = and(isFile({ project, id }), isListed);
  const found = await db.select({ id: files.id }).from(files).where(isPresent).for("share");
  return found.length > 0;
}

async function withBatch(db: Db, row: Row): Promise<ClaimedDelivery | null> {
  const [batch] = await db.select().from(batches).where(eq(batches.id, row.batchId));
  if (batch === undefined) return null;
  const fileOf = async (id: FileId | null) => {
    const [file] = id === null ? [] : await db.select().from(files).where(eq(files.id, id));
    return file;
  };
  const [output, error] = [await fileOf(row.outputFileId), await fileOf(row.errorFileId)];
  return claimedDelivery(row, { batch, output, error });
}
