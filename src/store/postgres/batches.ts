/** Batches as clients see them: created, read, listed. */

import type { Batch, ScopedId } from "../../batch/batch.ts";
import type { BatchQuery, OpenWork } from "../batches.ts";
import type { Receipt } from "../idempotency.ts";
import type { Page } from "../page.ts";
import { type BatchQuotas, QuotaExceeded } from "../quotas.ts";
import { batchFromRow, rowFromBatch } from "../rows.ts";
import { isListed, isOpenBatch, mayExpire } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, desc, eq, lt, type SQL, sql } from "./drizzle.ts";
import type { PostgresIdempotency } from "./idempotency.ts";
import { sendNudge } from "./nudges.ts";
import { lockLists } from "./order.ts";
import { batches } from "./schema.ts";
import { isBatchOfProject, isScopedBatch } from "./scope.ts";

async function assertRoom(db: Db, project: string, limit: number | null): Promise<void> {
  if (limit === null) return;
  const open = and(eq(batches.project, project), isOpenBatch, isListed);
  if ((await db.$count(batches, open)) >= limit) throw new QuotaExceeded("open_batches", limit);
}

export class PostgresBatches {
  readonly #db: Database;
  readonly #idempotency: PostgresIdempotency;

  constructor(db: Database, idempotency: PostgresIdempotency) {
    this.#db = db;
    this.#idempotency = idempotency;
  }

  insert(batch: Batch, receipt?: Receipt, quotas?: BatchQuotas): Promise<void> {
    return this.#db.transaction(async (db) => {
      if (receipt !== undefined) await this.#idempotency.record(db, receipt);
      await sendNudge(db, "batch_created");
      await lockLists(db, batch.project);
      // No other batch of the project comes between, because its lists are locked.
      await assertRoom(db, batch.project, quotas?.openBatches ?? null);
      await db.insert(batches).values(rowFromBatch(batch));
    });
  }

  async find(batch: ScopedId<"batch">): Promise<Batch | null> {
    const [row] = await this.#db.read((db) =>
      db.select().from(batches).where(isScopedBatch(batch)),
    );
    return row === undefined ? null : batchFromRow(row);
  }

  list({ project, limit, after }: BatchQuery): Promise<Page<Batch> | null> {
    return this.#db.read(async (db) => {
      let start: SQL | undefined;
      if (after !== null) {
        // A deleted batch still marks a place: scripts delete each batch of a page, then ask for the next page.
        const [cursor] = await db
          .select({ sequence: batches.sequence })
          .from(batches)
          .where(isBatchOfProject({ project, id: after }));
        if (cursor === undefined) return null;
        start = lt(batches.sequence, cursor.sequence);
      }
      const rows = await db
        .select()
        .from(batches)
        .where(and(eq(batches.project, project), isListed, start))
        .orderBy(desc(batches.sequence))
        .limit(limit + 1);
      return { data: rows.slice(0, limit).map(batchFromRow), hasMore: rows.length > limit };
    });
  }

  async countOpenWork(): Promise<OpenWork> {
    const rows = await this.#db.read((db) =>
      db
        .select({
          status: batches.status,
          batchCount: sql`count(*)`.mapWith(Number),
          lineCount: sql`
            coalesce(sum(total_count - completed_count - failed_count) filter (where stop_reason is null), 0)
          `.mapWith(Number),
          firstExpiresAtMs: sql<
            number | null
          >`min(expires_at_ms) filter (where ${mayExpire})`.mapWith(batches.expiresAtMs),
        })
        .from(batches)
        .where(isOpenBatch)
        .groupBy(batches.status),
    );
    const ends = rows.map((row) => row.firstExpiresAtMs).filter((atMs) => atMs !== null);
    return {
      batchCounts: Object.fromEntries(rows.map((row) => [row.status, row.batchCount])),
      lineCount: rows.reduce((sum, row) => sum + row.lineCount, 0),
      firstExpiresAtMs: ends.length === 0 ? null : Math.min(...ends),
    };
  }
}
