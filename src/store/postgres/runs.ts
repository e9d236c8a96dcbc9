/** Reads the facts that run records are made of, and keeps the records. `../runs.ts` has the promises. */
import type { BatchId } from "../../batch/batch.ts";
import type { RunStore, RunSummary } from "../runs.ts";
import { isFinalBatch, isListed } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { batchRuns } from "./run-schema.ts";
import { batches } from "./schema.ts";

/** Keeps a summary, as a part of the transaction that starts or ends the batch. */
export async function keepSummary(db: Db, batchId: BatchId, summary: RunSummary): Promise<void> {
  await db
    .insert(batchRuns)
    .values({ batchId, ...summary })
    .onConflictDoUpdate({ target: batchRuns.batchId, set: summary });
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
