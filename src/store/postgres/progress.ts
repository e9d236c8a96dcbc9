/** The course of batches: see `../progress.ts`. */
import type { BatchId } from "../../batch/batch.ts";
import { type StoredProgress, sampleFromStored, storedSample } from "../../batch/progress.ts";
import type { BatchSamples, ProgressStore, RunningProgress } from "../progress.ts";
import type { Database } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { arrayOf } from "./leases.ts";
import { batches, batchProgress } from "./schema.ts";

const lastAtMsOf = (row: "excluded" | "batch_progress") =>
  sql.raw(`(${row}.samples -> -1 ->> 0)::bigint`);

export class PostgresProgress implements ProgressStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async findRunningProgress(ids: readonly BatchId[]): Promise<RunningProgress[]> {
    const rows = await this.#db.read((db) =>
      db
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
        .where(
          and(sql`${batches.id} = any(${arrayOf(ids, "text")})`, eq(batches.status, "in_progress")),
        ),
    );
    return rows.flatMap(({ startedAtMs, samples, ...row }) =>
      startedAtMs === null
        ? []
        : [{ ...row, startedAtMs, samples: (samples ?? []).map(sampleFromStored) }],
    );
  }

  /** A batch that was deleted since gets no row. The lock on the others is the one that a foreign key would take. */
  async recordSamples(progress: readonly BatchSamples[]): Promise<void> {
    const ids = progress.map(({ batchId }) => batchId);
    const samples = progress.map((each) => JSON.stringify(each.samples.map(storedSample)));
    await this.#db.change((db) =>
      db.execute(sql`
        insert into batch_progress (batch_id, samples)
        select batches.id, taken.samples::json
        from unnest(${arrayOf(ids, "text")}, ${arrayOf(samples, "text")}) as taken(id, samples)
          join batches on batches.id = taken.id
        order by batches.id for key share of batches
        on conflict (batch_id) do update set samples = excluded.samples
        where ${lastAtMsOf("excluded")} > ${lastAtMsOf("batch_progress")}`),
    );
  }

  async findProgress(batchId: BatchId): Promise<StoredProgress> {
    const [row] = await this.#db.read((db) =>
      db
        .select({ samples: batchProgress.samples, latencyCounts: batches.latencyCounts })
        .from(batches)
        .leftJoin(batchProgress, eq(batchProgress.batchId, batches.id))
        .where(eq(batches.id, batchId)),
    );
    return {
      samples: (row?.samples ?? []).map(sampleFromStored),
      latencyCounts: row?.latencyCounts ?? null,
    };
  }
}
