/** The removal of the chunk and segment rows of final batches. */
import type { BatchId } from "../../batch/batch.ts";
import { isBehind } from "../sql/behind.ts";
import { isFinalBatch, isToTidy } from "./conditions.ts";
import type { Database } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { batches, chunks, segments } from "./schema.ts";
import { reservations } from "./usage-schema.ts";

/**
 * The time for which a final batch keeps its journal, and the deleted files that it has read. A failover to an asynchronous
 * standby may take back the commit that ended the batch, but not the deletion of its blobs. Its answers would have to be asked
 * for again, or be lost with the window. A standby is rarely behind by more than some seconds.
 */
const KEPT_MS = 60_000;

/** A final batch has one of these dates. */
const endedAtMs = sql.raw(
  "coalesce(completed_at_ms, failed_at_ms, expired_at_ms, cancelled_at_ms)",
);

export class PostgresTidying {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async listBatchesToTidy(limit: number, after?: BatchId): Promise<BatchId[]> {
    const now = this.#db.now();
    const rows = await this.#db.read((db) =>
      db
        .select({ id: batches.id })
        .from(batches)
        .where(
          and(isToTidy, sql`${endedAtMs} <= ${now} - ${KEPT_MS}::bigint`, isBehind(batches, after)),
        )
        .orderBy(batches.sequence)
        .limit(limit),
    );
    return rows.map(({ id }) => id);
  }

  forgetChunks(batchId: BatchId): Promise<void> {
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ hasChunks: false })
        .where(and(eq(batches.id, batchId), isFinalBatch));
      if (rowCount === 0) return;
      await db.delete(segments).where(eq(segments.batchId, batchId));
      await db.delete(chunks).where(eq(chunks.batchId, batchId));
      await db.delete(reservations).where(eq(reservations.batchId, batchId));
    });
  }
}
