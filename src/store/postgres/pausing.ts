/**
 * The pauses of batches. A pause is a mark on the row. Claims pass over a marked batch, and the holders of its chunks
 * learn of the mark when they renew their leases.
 */
import type { ScopedId } from "../../batch/batch.ts";
import type { PauseReason } from "../../contract/batch-extension.ts";
import { mayBePaused, mayExpire } from "./conditions.ts";
import type { Database } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { sendNudge } from "./nudges.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

export class PostgresPausing {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  pauseBatchIfOpen(batch: ScopedId<"batch">, reason: PauseReason): Promise<boolean> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ pausedAtMs: now, pauseReason: reason, pauseLimit: null })
        .where(and(isScopedBatch(batch), mayExpire, mayBePaused));
      if (rowCount === 0) return false;
      await sendNudge(db, "batch_stopping");
      return true;
    });
  }

  resumeBatchIfPaused(batch: ScopedId<"batch">, reason?: PauseReason): Promise<boolean> {
    const isFor = reason === undefined ? undefined : eq(batches.pauseReason, reason);
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ pausedAtMs: null, pauseReason: null, pauseLimit: null })
        .where(and(isScopedBatch(batch), mayExpire, sql`paused_at_ms is not null`, isFor));
      if (rowCount === 0) return false;
      await sendNudge(db, "batch_started");
      return true;
    });
  }
}
