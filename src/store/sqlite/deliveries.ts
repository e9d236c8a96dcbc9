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
import { isListed, isOpenDelivery, waitsForItsBatch } from "./conditions.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { and, desc, eq, isNotNull, isNull, lt, lte, or, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { recordReceipt } from "./idempotency.ts";
import { claimValues, NO_LEASE } from "./leases.ts";
import { batches } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";

type Row = typeof batchDeliveries.$inferSelect;

/** The end of a batch, as its deliveries see it. */
export interface ResultsOfBatch {
  readonly batchId: BatchId;
  readonly status: BatchStatus;
  readonly outputFileId: FileId | null;
  readonly errorFileId: FileId | null;
  readonly nowMs: number;
}

const ENDED = { credentials: null, progress: null, nextAttemptAtMs: null, ...NO_LEASE } as const;

const isHeld = ({ deliveryId, epoch }: DeliveryLease) =>
  and(
    eq(batchDeliveries.id, deliveryId),
    eq(batchDeliveries.leaseEpoch, epoch),
    isNotNull(batchDeliveries.leaseOwner),
  );

const isFree = (nowMs: number) =>
  or(isNull(batchDeliveries.leaseExpiresAtMs), lte(batchDeliveries.leaseExpiresAtMs, nowMs));

const isOfOthers = (projects: readonly string[]) =>
  sql`project not in (select value from json_each(${JSON.stringify(projects)}))`;

/** Compares an id that a client wrote. The batch that the query also names is one of its project. */
const isAsked = (id: UntrustedId<"delivery">): SQL => sql`${batchDeliveries.id} = ${id}`;

/** Stores the deliveries that a batch is created with, as a part of the transaction. */
export function insertWaitingDeliveries(
  db: Db,
  batch: Batch,
  deliveries: readonly NewDelivery[],
): void {
  for (const delivery of deliveries) {
    db.insert(batchDeliveries).values(deliveryRow(batch, delivery)).run();
  }
}

/** Makes the deliveries of a batch due in the transaction that makes it final, or ends them with a failed batch. */
export function settleDeliveries(
  db: Db,
  { batchId, status, nowMs, ...files }: ResultsOfBatch,
): void {
  const change =
    status === "failed"
      ? { ...ENDED, status: "failed" as const, error: BATCH_FAILED, endedAtMs: nowMs }
      : { ...files, dueAtMs: nowMs, nextAttemptAtMs: nowMs };
  db.update(batchDeliveries)
    .set(change)
    .where(and(eq(batchDeliveries.batchId, batchId), waitsForItsBatch))
    .run();
}

/**
 * Ends the deliveries of a batch that is deleted, in the same transaction. One that is under way, or has left something at its
 * place, is cancelled: its holder, or the next one, removes that.
 */
export function endDeliveries(db: Db, batchId: BatchId, nowMs: number): void {
  const ofBatch = eq(batchDeliveries.batchId, batchId);
  const hasLeftNothing = and(isFree(nowMs), isNull(batchDeliveries.progress));
  const isOver = or(sql`not (${isOpenDelivery})`, hasLeftNothing);
  db.delete(batchDeliveries).where(and(ofBatch, isOver)).run();
  db.update(batchDeliveries).set({ error: CANCELLED, nextAttemptAtMs: nowMs }).where(ofBatch).run();
}

export class SqliteDeliveries implements DeliveryStore {
  readonly #db: Db;
  readonly #now: Now;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
  }

  async insertDeliveryIfFinal(
    batch: ScopedId<"batch">,
    delivery: NewDelivery,
    receipt?: Receipt,
  ): Promise<DeliveryInsertion> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      const found = this.#findBatch(batch);
      if (found === undefined) return { kind: "no_batch" };
      const { status, outputFileId, errorFileId } = found;
      if (!isFinal(status) || status === "failed") return { kind: "no_results", status };
      if (![outputFileId, errorFileId].every((file) => this.#isListed(batch.project, file))) {
        return { kind: "files_deleted" };
      }
      const due = { outputFileId, errorFileId, dueAtMs: nowMs, nextAttemptAtMs: nowMs };
      const { changes } = this.#db
        .insert(batchDeliveries)
        .values({ ...deliveryRow(found, delivery), ...due })
        .onConflictDoNothing()
        .run();
      if (changes === 0) return { kind: "under_way" };
      if (receipt !== undefined) recordReceipt(this.#db, receipt);
      return { kind: "stored" };
    });
  }

  async listDeliveries({ batch, limit, after }: DeliveryQuery): Promise<Page<Delivery> | null> {
    const found = this.#findBatch(batch);
    if (found === undefined) return { data: [], hasMore: false };
    const ofBatch = eq(batchDeliveries.batchId, found.id);
    let before: SQL | undefined;
    if (after !== null) {
      const cursor = this.#find(and(ofBatch, isAsked(after)));
      if (cursor === undefined) return null;
      before = lt(batchDeliveries.sequence, cursor.sequence);
    }
    const rows = this.#db
      .select()
      .from(batchDeliveries)
      .where(and(ofBatch, before))
      .orderBy(desc(batchDeliveries.sequence))
      .limit(limit + 1)
      .all();
    return pageOf(rows, limit, deliveryFromRow);
  }

  async findDelivery(
    batch: ScopedId<"batch">,
    id: UntrustedId<"delivery">,
  ): Promise<Delivery | null> {
    const found = this.#findBatch(batch);
    if (found === undefined) return null;
    const row = this.#find(and(eq(batchDeliveries.batchId, found.id), isAsked(id)));
    return row === undefined ? null : deliveryFromRow(row);
  }

  async cancelDeliveryIfOpen(
    batch: ScopedId<"batch">,
    id: UntrustedId<"delivery">,
  ): Promise<DeliveryCancellation | null> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      const found = this.#findBatch(batch);
      if (found === undefined) return null;
      const isOpen = and(eq(batchDeliveries.batchId, found.id), isAsked(id), isOpenDelivery);
      const row = this.#find(isOpen);
      if (row === undefined) return null;
      const hasHolder = this.#find(and(isOpen, isFree(nowMs))) === undefined;
      const hasEnded = !hasHolder && row.progress === null;
      const change = hasEnded
        ? { ...ENDED, status: "failed" as const, endedAtMs: nowMs }
        : { nextAttemptAtMs: nowMs };
      this.#db
        .update(batchDeliveries)
        .set({ ...change, error: CANCELLED })
        .where(eq(batchDeliveries.id, row.id))
        .run();
      return hasEnded ? "ended" : "asked";
    });
  }

  async claimDelivery({
    busyDestinations,
    toClientBuckets,
    busyProjects,
    passedOver,
    ...claim
  }: DeliveryClaim): Promise<ClaimedDelivery | null> {
    const { owner, nowMs, leaseExpiresAtMs } = claimValues(claim, this.#now());
    const busy = JSON.stringify(busyDestinations);
    // No delivery is due at most times, and a transaction costs more than this look.
    const due = this.#db
      .select({ sequence: batchDeliveries.sequence })
      .from(batchDeliveries)
      .where(
        and(
          lte(batchDeliveries.nextAttemptAtMs, nowMs),
          isFree(nowMs),
          sql`destination not in (select value from json_each(${busy}))`,
          toClientBuckets ? undefined : isNotNull(batchDeliveries.location),
          busyProjects.length === 0
            ? undefined
            : or(isNotNull(batchDeliveries.location), isOfOthers(busyProjects)),
          passedOver.length === 0 ? undefined : isOfOthers(passedOver),
        ),
      )
      .orderBy(batchDeliveries.nextAttemptAtMs, batchDeliveries.sequence)
      .limit(1)
      .get();
    if (due === undefined) return null;
    return write(this.#db, () => {
      const row = this.#db
        .update(batchDeliveries)
        .set({
          leaseOwner: owner,
          leaseExpiresAtMs,
          leaseEpoch: sql`lease_epoch + 1`,
          attemptCount: sql`attempt_count + 1`,
        })
        .where(eq(batchDeliveries.sequence, due.sequence))
        .returning()
        .get();
      return this.#claimed(row);
    });
  }

  async renewDeliveryIfLeased(lease: DeliveryLease, ttlMs: number): Promise<DeliveryRenewal> {
    return writeUnsynced(this.#db, () => {
      const row = this.#db
        .update(batchDeliveries)
        .set({ leaseExpiresAtMs: this.#now() + ttlMs })
        .where(isHeld(lease))
        .returning({ error: batchDeliveries.error })
        .get();
      if (row === undefined) return "lost";
      return isCancelled(row) ? "cancelled" : "renewed";
    });
  }

  async saveDeliveryProgressIfLeased(lease: DeliveryLease, progress: string): Promise<boolean> {
    return write(this.#db, () => this.#change(lease, { progress }));
  }

  async releaseDeliveryIfLeased(lease: DeliveryLease): Promise<boolean> {
    const { changes } = this.#db
      .update(batchDeliveries)
      .set({ attemptCount: sql`attempt_count - 1`, ...NO_LEASE })
      .where(isHeld(lease))
      .run();
    return changes === 1;
  }

  async postponeDeliveryIfLeased(
    lease: DeliveryLease,
    { ms, withinMs, error }: NextAttempt,
  ): Promise<DeliveryPostponement> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      const row = this.#find(isHeld(lease));
      if (row === undefined) return "lost";
      if (isCancelled(row)) return "cancelled";
      const nextAttemptAtMs = nowMs + ms;
      if (nextAttemptAtMs > (row.dueAtMs ?? nowMs) + withinMs) return "too_late";
      this.#change(lease, { nextAttemptAtMs, error, ...NO_LEASE });
      return "postponed";
    });
  }

  async endDeliveryIfLeased(lease: DeliveryLease, end: DeliveryEnd): Promise<boolean> {
    const nowMs = this.#now();
    const error = end.status === "failed" ? end.error : null;
    const address = end.status === "delivered" ? end.address : null;
    const ended = { ...ENDED, status: end.status, error, address, endedAtMs: nowMs };
    return write(this.#db, () => this.#change(lease, ended));
  }

  /** A folder has no replica of an older version, which would overlook some. */
  async settleOverlookedDeliveries(): Promise<number> {
    return 0;
  }

  #change(lease: DeliveryLease, changed: Partial<typeof batchDeliveries.$inferInsert>): boolean {
    const { changes } = this.#db.update(batchDeliveries).set(changed).where(isHeld(lease)).run();
    return changes === 1;
  }

  #find(condition: SQL | undefined): Row | undefined {
    return this.#db.select().from(batchDeliveries).where(condition).get();
  }

  #findBatch(batch: ScopedId<"batch">) {
    return this.#db
      .select()
      .from(batches)
      .where(isScopedBatch)
      .prepare()
      .get({ ...batch });
  }

  #isListed(project: string, id: FileId | null): boolean {
    if (id === null) return true;
    return (
      this.#db
        .select({ id: files.id })
        .from(files)
        .where(and(isFile({ project, id }), isListed))
        .get() !== undefined
    );
  }

  #claimed(row: Row): ClaimedDelivery | null {
    const batch = this.#db.select().from(batches).where(eq(batches.id, row.batchId)).get();
    if (batch === undefined) return null;
    const fileOf = (id: FileId | null) =>
      id === null ? undefined : this.#db.select().from(files).where(eq(files.id, id)).get();
    const [output, error] = [fileOf(row.outputFileId), fileOf(row.errorFileId)];
    return claimedDelivery(row, { batch, output, error });
  }
}
