/**
 * Batches that clients delete. The mark is one commit. The rows follow once no chunk and no delivery is open: a holder may
 * write until it has closed its chunk, and a delivery removes what it has left at its place.
 */
import type { BatchId, ScopedId } from "../../batch/batch.ts";
import type { DeletingStore } from "../deleting.ts";
import { isBehind } from "../sql/behind.ts";
import { isDeleted, isListed, isOpenChunk, isOpenDelivery } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { endDeliveries } from "./deliveries.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { NO_LEASE } from "./leases.ts";
import { sendNudge } from "./nudges.ts";
import { batches, chunks, segments, webhookDeliveries } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";
import { cancel } from "./stopping.ts";
import { forgetTombstones, leaveTombstones } from "./tombstones.ts";
import { reservations } from "./usage-schema.ts";

/** The rows of a batch that others wait for stay until those have been told. */
const isOver = sql`${isDeleted} and is_awaited is not true
  and not exists (select 1 from chunks where batch_id = batches.id and ${isOpenChunk})
  and not exists (
    select 1 from batch_deliveries where batch_id = batches.id and ${isOpenDelivery})`;

export class PostgresDeleting implements DeletingStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  deleteBatchIfPresent(
    batch: ScopedId<"batch">,
    { withInput }: Parameters<DeletingStore["deleteBatchIfPresent"]>[1],
  ): Promise<boolean> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      await cancel(db, batch, now);
      const [row] = await db
        .update(batches)
        .set({ deletedAtMs: now, leaseEpoch: sql`lease_epoch + 1`, ...NO_LEASE })
        .where(isScopedBatch(batch))
        .returning();
      if (row === undefined) return false;
      await db.delete(webhookDeliveries).where(eq(webhookDeliveries.batchId, row.id));
      await endDeliveries(db, row.id, now);
      await deleteResults(db, row, now);
      if (withInput) await deleteFile(db, { project: row.project, id: row.inputFileId }, now);
      // The sweep is the work of one process, which may be another one. A batch that had ended is ready for it.
      await sendNudge(db, "batch_stopping");
      return true;
    });
  }

  async listDeletedBatches(limit: number, after?: BatchId): Promise<BatchId[]> {
    const rows = await this.#db.read((db) =>
      db
        .select({ id: batches.id })
        .from(batches)
        .where(and(isOver, isBehind(batches, after)))
        .orderBy(batches.sequence)
        .limit(limit),
    );
    return rows.map(({ id }) => id);
  }

  forgetBatch(batchId: BatchId): Promise<void> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      const [row] = await db
        .select()
        .from(batches)
        .where(and(eq(batches.id, batchId), isOver))
        .for("update");
      if (row === undefined) return;
      await db.delete(segments).where(eq(segments.batchId, batchId));
      await db.delete(chunks).where(eq(chunks.batchId, batchId));
      await db.delete(reservations).where(eq(reservations.batchId, batchId));
      // A replica of an older version may have ended the batch since.
      await deleteResults(db, row, now);
      await db.delete(webhookDeliveries).where(eq(webhookDeliveries.batchId, batchId));
      await db.delete(batchDeliveries).where(eq(batchDeliveries.batchId, batchId));
      await leaveTombstones(db, "batches", eq(batches.id, batchId), now);
      await db.delete(batches).where(eq(batches.id, batchId));
    });
  }

  forgetTombstones(): Promise<void> {
    const now = this.#db.now();
    return forgetTombstones(this.#db, now);
  }
}

async function deleteResults(
  db: Db,
  { project, outputFileId, errorFileId }: typeof batches.$inferSelect,
  now: SQL,
): Promise<void> {
  for (const id of [outputFileId, errorFileId]) {
    if (id !== null) await deleteFile(db, { project, id }, now);
  }
}

async function deleteFile(db: Db, file: ScopedId<"file">, now: SQL): Promise<void> {
  await db
    .update(files)
    .set({ deletedAtMs: now })
    .where(and(isFile(file), isListed));
}
