/** Reads the facts that run records are made of, and keeps the records. `../runs.ts` has the promises. */
import type { BatchId } from "../../batch/batch.ts";
import type { InputSummary, ResultSummary } from "../../batch/run-summary.ts";
import type { RunStore } from "../runs.ts";
import { isFinalBatch, isListed } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { batchRuns } from "./run-schema.ts";
import { batches } from "./schema.ts";

/** Keeps the summary of an input, as a part of the transaction that starts the batch. */
export function keepInputSummary(db: Db, batchId: BatchId, input: InputSummary): void {
  const set = { input };
  db.insert(batchRuns)
    .values({ batchId, ...set })
    .onConflictDoUpdate({ target: batchRuns.batchId, set })
    .run();
}

/** Keeps the summary of the results, as a part of the transaction that ends the batch. */
export function keepResultSummary(db: Db, batchId: BatchId, results: ResultSummary): void {
  const set = { results };
  db.insert(batchRuns)
    .values({ batchId, ...set })
    .onConflictDoUpdate({ target: batchRuns.batchId, set })
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
