/**
 * The pauses of batches. A pause is a mark on the row. Claims pass over a marked batch, and the holders of its chunks
 * learn of the mark when they renew their leases.
 */
import type { ScopedId } from "../../batch/batch.ts";
import type { PauseReason } from "../../contract/batch.ts";
import { mayExpire, maySend } from "./conditions.ts";
import type { Database } from "./database.ts";
import { and, type SQL, sql } from "./drizzle.ts";
import { sendNudge } from "./nudges.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

export class PostgresPausing {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  pauseIfOpen(batch: ScopedId<"batch">, reason: PauseReason, now: SQL): Promise<boolean> {
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ pausedAtMs: now, pauseReason: reason })
        .where(and(isScopedBatch(batch), maySend));
      if (rowCount === 0) return false;
      await sendNudge(db, "batch_stopping");
      return true;
    });
  }

  resumeIfPaused(batch: ScopedId<"batch">): Promise<boolean> {
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ pausedAtMs: null, pauseReason: null })
        .where(and(isScopedBatch(batch), mayExpire, sql`paused_at_ms is not null`));
      if (rowCount === 0) return false;
      await sendNudge(db, "batch_started");
      return true;
    });
  }
}
