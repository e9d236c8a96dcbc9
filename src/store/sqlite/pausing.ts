/**
 * The pauses of batches. A pause is a mark on the row. Claims pass over a marked batch, and the holders of its chunks
 * learn of the mark when they renew their leases.
 */
import type { ScopedId } from "../../batch/batch.ts";
import type { PauseReason } from "../../contract/batch.ts";
import { mayExpire, maySend } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, placeholder, sql } from "./drizzle.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

const prepareStatements = (db: Db) => ({
  pause: db
    .update(batches)
    .set({
      pausedAtMs: sql`${placeholder("nowMs")}`,
      pauseReason: sql`${placeholder("reason")}`,
    })
    .where(and(isScopedBatch, maySend))
    .prepare(),
  resume: db
    .update(batches)
    .set({ pausedAtMs: null, pauseReason: null })
    .where(and(isScopedBatch, mayExpire, sql`paused_at_ms is not null`))
    .prepare(),
});

export class SqlitePausing {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  pauseIfOpen({ project, id }: ScopedId<"batch">, reason: PauseReason, nowMs: number): boolean {
    const { pause } = this.#statements;
    return write(this.#db, () => pause.run({ project, id, reason, nowMs }).changes === 1);
  }

  resumeIfPaused({ project, id }: ScopedId<"batch">): boolean {
    return write(this.#db, () => this.#statements.resume.run({ project, id }).changes === 1);
  }
}
