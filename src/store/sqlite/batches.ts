/** Batches as clients see them: created, read, listed. */

import type { Batch, ScopedId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import type { BatchQuery, OpenWork } from "../batches.ts";
import type { Receipt } from "../idempotency.ts";
import type { Page } from "../page.ts";
import { type BatchQuotas, QuotaExceeded } from "../quotas.ts";
import { batchFromRow, rowFromBatch } from "../rows.ts";
import { isListed, isOpenBatch, mayExpire } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, desc, eq, lt, type SQL, sql } from "./drizzle.ts";
import type { SqliteIdempotency } from "./idempotency.ts";
import { batches } from "./schema.ts";
import { isBatchOfProject, isScopedBatch } from "./scope.ts";

const prepareStatements = (db: Db) => ({
  find: db.select().from(batches).where(isScopedBatch).prepare(),
  // A deleted batch still marks a place: scripts delete each batch of a page, then ask for the next page.
  findPlace: db
    .select({ sequence: batches.sequence })
    .from(batches)
    .where(isBatchOfProject)
    .prepare(),
  // Any index of open batches spares a scan of the final ones, which may number a million.
  countOpenWork: db
    .select({
      status: sql<BatchStatus>`status`,
      batchCount: sql<number>`count(*)`,
      lineCount: sql<number>`sum(iif(stop_reason is null, total_count - completed_count - failed_count, 0))`,
      firstExpiresAtMs: sql<number | null>`min(iif(${mayExpire}, expires_at_ms, null))`,
    })
    .from(sql`batches indexed by batches_open_by_input`)
    .where(isOpenBatch)
    .groupBy(sql`status`)
    .prepare(),
});

export class SqliteBatches {
  readonly #db: Db;
  readonly #idempotency: SqliteIdempotency;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, idempotency: SqliteIdempotency) {
    this.#db = db;
    this.#idempotency = idempotency;
    this.#statements = prepareStatements(db);
  }

  insert(batch: Batch, receipt?: Receipt, quotas?: BatchQuotas): void {
    write(this.#db, () => {
      this.#assertRoom(batch.project, quotas?.openBatches ?? null);
      this.#db.insert(batches).values(rowFromBatch(batch)).run();
      if (receipt !== undefined) this.#idempotency.record(receipt);
    });
  }

  #assertRoom(project: string, limit: number | null): void {
    if (limit === null) return;
    const open = this.#db.get<{ count: number }>(
      sql`select count(*) as count from batches where project = ${project} and ${isOpenBatch} and ${isListed}`,
    );
    if (open.count >= limit) throw new QuotaExceeded("open_batches", limit);
  }

  find({ project, id }: ScopedId<"batch">): Batch | null {
    const row = this.#statements.find.get({ project, id });
    return row === undefined ? null : batchFromRow(row);
  }

  list({ project, limit, after }: BatchQuery): Page<Batch> | null {
    let start: SQL | undefined;
    if (after !== null) {
      const cursor = this.#statements.findPlace.get({ project, id: after });
      if (cursor === undefined) return null;
      start = lt(batches.sequence, cursor.sequence);
    }
    const rows = this.#db
      .select()
      .from(batches)
      .where(and(eq(batches.project, project), isListed, start))
      .orderBy(desc(batches.sequence))
      .limit(limit + 1)
      .all();
    return { data: rows.slice(0, limit).map(batchFromRow), hasMore: rows.length > limit };
  }

  countOpenWork(): OpenWork {
    const rows = this.#statements.countOpenWork.all();
    const ends = rows.map((row) => row.firstExpiresAtMs).filter((atMs) => atMs !== null);
    return {
      batchCounts: Object.fromEntries(rows.map((row) => [row.status, row.batchCount])),
      lineCount: rows.reduce((sum, row) => sum + row.lineCount, 0),
      firstExpiresAtMs: ends.length === 0 ? null : Math.min(...ends),
    };
  }
}
