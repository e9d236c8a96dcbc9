/** The removal of the chunk and segment rows of final batches. */
import type { BatchId } from "../../batch/batch.ts";
import { isFinalBatch, isToTidy } from "./conditions.ts";
import type { Database } from "./database.ts";
import { and, eq } from "./drizzle.ts";
import { batches, chunks, reservations, segments } from "./schema.ts";

export class PostgresTidying {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async listToTidy(limit: number): Promise<BatchId[]> {
    const rows = await this.#db.read((db) =>
      db
        .select({ id: batches.id })
        .from(batches)
        .where(isToTidy)
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
