/** Reads the facts that run records are made of, and keeps the records. `../runs.ts` has the promises. */
import type { BatchId } from "../../batch/batch.ts";
import type { RunStore, RunSummary } from "../runs.ts";
import { isFinalBatch, isListed } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { batchRuns } from "./run-schema.ts";
import { batches } from "./schema.ts";

/** Keeps a summary, as a part of the transaction that starts or ends the batch. */
export function keepSummary(db: Db, batchId: BatchId, summary: RunSummary): void {
  db.insert(batchRuns)
    .values({ batchId, ...summary })
    .onConflictDoUpdate({ target: batchRuns.batchId, set: summary })
    .run();
}

export const sqliteRuns = (db: Db): RunStore => ({
  findRun: async (batchId) =>
    db.select().from(batchRuns).where(eq(batchRuns.batchId, batchId)).get() ?? null,
  keepRunRecord: async (batchId, record) =>
    write(db, () => {
      const final = db
        .select({ id: batches.id })
        .from(batches)
        .where(and(eq(batches.id, batchId), isFinalBatch, isListed))
        .get();
      if (final === undefined) return null;
      const [kept] = db
        .insert(batchRuns)
        .values({ batchId, record })
        .onConflictDoUpdate({
          target: batchRuns.batchId,
          set: { record: sql`coalesce(${batchRuns.record}, excluded.record)` },
        })
        .returning({ record: batchRuns.record })
        .all();
      return kept?.record ?? null;
    }),
});
