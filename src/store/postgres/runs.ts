/** Reads the facts that run records are made of, and keeps the records. `../runs.ts` has the promises. */
import type { BatchId } from "../../batch/batch.ts";
import type { InputSummary, ResultSummary } from "../../batch/run-summary.ts";
import type { RunStore } from "../runs.ts";
import { isFinalBatch, isListed } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { batchRuns } from "./run-schema.ts";
import { batches } from "./schema.ts";

/** Keeps the summary of an input, as a part of the transaction that starts the batch. */
export async function keepInputSummary(
  db: Db,
  batchId: BatchId,
  input: InputSummary,
): Promise<void> {
  const set = { input };
  await db
    .insert(batchRuns)
    .values({ batchId, ...set })
    .onConflictDoUpdate({ target: batchRuns.batchId, set });
}

/** Keeps the summary of the results, as a part of the transaction that ends the batch. */
export async function keepResultSummary(
  db: Db,
  batchId: BatchId,
  results: ResultSummary,
): Promise<void> {
  const set = { results };
  await db
    .insert(batchRuns)
    .values({ batchId, ...set })
    .onConflictDoUpdate({ target: batchRuns.batchId, set });
}

export const postgresRuns = (db: Database): RunStore => ({
  findRun: async (batchId) => {
    const [run] = await db.read((each) =>
      each.select().from(batchRuns).where(eq(batchRuns.batchId, batchId)),
    );
    return run ?? null;
  },
  keepRunRecord: (batchId, record) =>
    db.transaction(async (tx) => {
      // A deletion of the batch waits for this lock, so the record goes with it.
      const [final] = await tx
        .select({ id: batches.id })
        .from(batches)
        .where(and(eq(batches.id, batchId), isFinalBatch, isListed))
        .for("key share");
      if (final === undefined) return null;
      const [kept] = await tx
        .insert(batchRuns)
        .values({ batchId, record })
        .onConflictDoUpdate({
          target: batchRuns.batchId,
          set: { record: sql`coalesce(${batchRuns.record}, excluded.record)` },
        })
        .returning({ record: batchRuns.record });
      return kept?.record ?? null;
    }),
});
