/**
 * The pauses of batches. A pause is a mark on the row. Claims pass over a marked batch, and the holders of its chunks
 * learn of the mark when they renew their leases.
 */
import type { ScopedId } from "../../batch/batch.ts";
import type { PauseReason } from "../../contract/batch-extension.ts";
import { mayBePaused, mayExpire } from "./conditions.ts";
import { type Db, type Now, write } from "./database.ts";
import { and, placeholder, sql } from "./drizzle.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

const prepareStatements = (db: Db) => ({
  pause: db
    .update(batches)
    .set({
      pausedAtMs: sql`${placeholder("nowMs")}`,
      pauseReason: sql`${placeholder("reason")}`,
      pauseLimit: null,
    })
    .where(and(isScopedBatch, mayExpire, mayBePaused))
    .prepare(),
  resume: db
    .update(batches)
    .set({ pausedAtMs: null, pauseReason: null, pauseLimit: null })
    .where(
      and(
        isScopedBatch,
        mayExpire,
        sql`paused_at_ms is not null`,
        sql`pause_reason = coalesce(${placeholder("reason")}, pause_reason)`,
      ),
    )
    .prepare(),
});

export class SqlitePausing {
  readonly #db: Db;
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
    this.#statements = prepareStatements(db);
  }

  async pauseBatchIfOpen(
    { project, id }: ScopedId<"batch">,
    reason: PauseReason,
  ): Promise<boolean> {
    const nowMs = this.#now();
    const { pause } = this.#statements;
    return write(this.#db, () => pause.run({ project, id, reason, nowMs }).changes === 1);
  }

  async resumeBatchIfPaused(
    { project, id }: ScopedId<"batch">,
    reason: PauseReason | null = null,
  ): Promise<boolean> {
    const { resume } = this.#statements;
    return write(this.#db, () => resume.run({ project, id, reason }).changes === 1);
  }
}
