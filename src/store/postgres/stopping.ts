/**
 * Stops batches before their last line, because their client cancelled them or their window is over.
 *
 * A stop never waits for a worker. Chunks without a holder are closed at once. A very large batch has the others closed by
 * later passes. A holder closes its own chunk when it learns of the stop, and a later pass does so if the holder is gone.
 * The validator of such a batch loses its lease here, so that its commit changes nothing.
 */

import type { BatchId, ScopedId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import { isEnding, isOpenChunk, isSelected, mayExpire, statusIn } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, type SQL, sql } from "./drizzle.ts";
import { arrayOf, isFree, NO_LEASE, RELEASED } from "./leases.ts";
import { sendNudge } from "./nudges.ts";
import { batches, chunks } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

/** A finalizer keeps its lease, because the batch ends with the files that it has written. */
const WITHOUT_VALIDATOR = {
  leaseOwner: sql`case when ${statusIn("validating")} then ${RELEASED.leaseOwner} else lease_owner end`,
  leaseExpiresAtMs: sql`case when ${statusIn("validating")} then ${RELEASED.leaseExpiresAtMs} else lease_expires_at_ms end`,
  leaseEpoch: sql`lease_epoch + (${statusIn("validating")})::int`,
};

const PAGE_BATCHES = 100;
const PAGE_CHUNKS = 1_000;

export class PostgresStopping {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  cancelBatchIfOpen(batch: ScopedId<"batch">): Promise<boolean> {
    const now = this.#db.now();
    return this.#db.transaction((db) => cancel(db, batch, now));
  }

  /** One statement, because it runs every few seconds and mostly finds nothing. */
  async stopExpiredBatches(): Promise<BatchId[]> {
    const now = this.#db.now();
    const isExpired = sql`batch_id = any(array(select id from expired))`;
    const rows = await this.#db.change((db) => {
      const expired = db.$with("expired").as(
        db
          .update(batches)
          .set({ stopReason: "expired", ...WITHOUT_VALIDATOR })
          .where(
            isSelected(sql`
              select sequence from batches
              where ${mayExpire} and expires_at_ms <= ${now}
              order by expires_at_ms limit ${PAGE_BATCHES} for update skip locked`),
          )
          .returning({ id: batches.id }),
      );
      const closed = db
        .$with("closed")
        .as(closeFirst(db, isExpired, now).returning({ id: chunks.sequence }));
      return db.with(expired, closed).select().from(expired);
    });
    return rows.map(({ id }) => id);
  }

  async closeUnheldChunks(): Promise<number> {
    const now = this.#db.now();
    const isAbandoned = sql`batch_id = any(array(select id from batches where ${isEnding}))`;
    let closedCount = 0;
    for (;;) {
      const page = await this.#db.change((db) => closePage(db, isAbandoned, now));
      closedCount += page;
      if (page < PAGE_CHUNKS) return closedCount;
    }
  }
}

/** Cancels an open batch as a part of a transaction. */
export async function cancel(db: Db, batch: ScopedId<"batch">, now: SQL): Promise<boolean> {
  const cancelled = await db
    .update(batches)
    .set({
      status: "cancelling",
      stopReason: "cancelled",
      cancellingAtMs: now,
      ...WITHOUT_VALIDATOR,
    })
    .where(
      and(
        isScopedBatch(batch),
        statusIn(...statusesBefore("cancelling")),
        sql`stop_reason is null`,
      ),
    )
    .returning({ id: batches.id });
  if (cancelled.length === 0) return false;
  await sendNudge(db, "batch_stopping");
  await closeFreeChunks(db, cancelled, now);
  return true;
}

const closeFreeChunks = (db: Db, stopped: readonly { readonly id: BatchId }[], now: SQL) => {
  const ids = stopped.map(({ id }) => id);
  return closePage(db, sql`batch_id = any(${arrayOf(ids, "text")})`, now);
};

/** Returns the number of open chunks that had no holder, up to {@link PAGE_CHUNKS}. */
async function closePage(db: Db, isChosen: SQL, now: SQL): Promise<number> {
  const { rowCount } = await closeFirst(db, isChosen, now);
  return rowCount ?? 0;
}

const closeFirst = (db: Db, isChosen: SQL, now: SQL) =>
  db
    .update(chunks)
    .set({ closedAtMs: now, ...NO_LEASE })
    .where(
      isSelected(sql`
        select sequence from chunks
        where ${isChosen} and ${isOpenChunk} and ${isFree(now)}
        limit ${PAGE_CHUNKS} for update skip locked`),
    );
