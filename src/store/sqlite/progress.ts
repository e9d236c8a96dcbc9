/** The course of batches: see `../progress.ts`. */
import type { BatchId } from "../../batch/batch.ts";
import { type StoredProgress, sampleFromStored, storedSample } from "../../batch/progress.ts";
import type { BatchSamples, ProgressStore, RunningProgress } from "../progress.ts";
import { type Db, writeUnsynced } from "./database.ts";
import { and, eq, inArray, placeholder, sql } from "./drizzle.ts";
import { batches, batchProgress } from "./schema.ts";

const lastAtMsOf = (row: "excluded" | "batch_progress") =>
  sql.raw(`json_extract(${row}.samples, '$[#-1][0]')`);

const prepareStatements = (db: Db) => ({
  find: db
    .select({ samples: batchProgress.samples, latencyCounts: batches.latencyCounts })
    .from(batches)
    .leftJoin(batchProgress, eq(batchProgress.batchId, batches.id))
    .where(eq(batches.id, placeholder("batchId")))
    .prepare(),
  /** A batch that was deleted since gets no row. */
  record: db
    .insert(batchProgress)
    .select(
      db
        .select({
          sequence: sql<number>`null`.as("sequence"),
          batchId: batches.id,
          samples: sql<never>`${placeholder("samples")}`.as("samples"),
        })
        .from(batches)
        .where(eq(batches.id, placeholder("batchId"))),
    )
    .onConflictDoUpdate({
      target: batchProgress.batchId,
      set: { samples: sql`excluded.samples` },
      setWhere: sql`${lastAtMsOf("excluded")} > ${lastAtMsOf("batch_progress")}`,
    })
    .prepare(),
});

export class SqliteProgress implements ProgressStore {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  async findRunningProgress(ids: readonly BatchId[]): Promise<RunningProgress[]> {
    return this.#db
      .select({
        batchId: batches.id,
        startedAtMs: batches.inProgressAtMs,
        completed: batches.completedCount,
        failed: batches.failedCount,
        inputTokens: batches.inputTokens,
        outputTokens: batches.outputTokens,
        samples: batchProgress.samples,
      })
      .from(batches)
      .leftJoin(batchProgress, eq(batchProgress.batchId, batches.id))
      .where(and(inArray(batches.id, [...ids]), eq(batches.status, "in_progress")))
      .all()
      .flatMap(({ startedAtMs, samples, ...row }) =>
        startedAtMs === null
          ? []
          : [{ ...row, startedAtMs, samples: (samples ?? []).map(sampleFromStored) }],
      );
  }

  async recordSamples(progress: readonly BatchSamples[]): Promise<void> {
    writeUnsynced(this.#db, () => {
      for (const { batchId, samples } of progress) {
        this.#statements.record.run({
          batchId,
          samples: JSON.stringify(samples.map(storedSample)),
        });
      }
    });
  }

  async findProgress(batchId: BatchId): Promise<StoredProgress> {
    const row = this.#statements.find.get({ batchId });
    return {
      samples: (row?.samples ?? []).map(sampleFromStored),
      latencyCounts: row?.latencyCounts ?? null,
    };
  }
}
