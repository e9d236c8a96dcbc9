/**
 * Batches that are to end before their last line: cancelled by their client, or out of time.
 *
 * Stopping never waits for a worker. Chunks that nobody holds are closed at once; a holder closes its
 * own when it learns of it, and if it is gone, a later pass does. Whoever validates such a batch loses
 * the lease here, so that its commit comes to nothing.
 */

import type { BatchId, ScopedId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import { isEnding, isOpenChunk, mayExpire, statusIn } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { isFree, NO_LEASE } from "./leases.ts";
import { batches, chunks } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

/** A finalizer, in contrast, keeps its lease: what it has written is what the batch ends with. */
const WITHOUT_VALIDATOR = {
  leaseOwner: sql`iif(${statusIn("validating")}, null, lease_owner)`,
  leaseExpiresAtMs: sql`iif(${statusIn("validating")}, null, lease_expires_at_ms)`,
  leaseEpoch: sql`lease_epoch + (${statusIn("validating")})`,
};

const closing = { closedAtMs: sql`${placeholder("nowMs")}`, ...NO_LEASE };

const prepareStatements = (db: Db) => ({
  cancel: db
    .update(batches)
    .set({
      status: "cancelling",
      stopReason: "cancelled",
      cancellingAtMs: sql`${placeholder("nowMs")}`,
      ...WITHOUT_VALIDATOR,
    })
    .where(and(isScopedBatch, statusIn(...statusesBefore("cancelling")), sql`stop_reason is null`))
    .returning({ id: batches.id })
    .prepare(),
  expire: db
    .update(batches)
    .set({ stopReason: "expired", ...WITHOUT_VALIDATOR })
    .where(and(mayExpire, sql`expires_at_ms <= ${placeholder("nowMs")}`))
    .returning({ id: batches.id })
    .prepare(),
  closeFreeChunks: db
    .update(chunks)
    .set(closing)
    .where(and(eq(chunks.batchId, placeholder("id")), isOpenChunk, isFree))
    .prepare(),
  closeAbandonedChunks: db
    .update(chunks)
    .set(closing)
    .where(and(sql`batch_id in (select id from batches where ${isEnding})`, isOpenChunk, isFree))
    .prepare(),
});

export class SqliteStopping {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  cancelIfOpen({ project, id }: ScopedId<"batch">, nowMs: number): boolean {
    return write(this.#db, () => {
      const cancelled = this.#statements.cancel.get({ project, id, nowMs });
      if (cancelled === undefined) return false;
      this.#statements.closeFreeChunks.run({ ...cancelled, nowMs });
      return true;
    });
  }

  expire(nowMs: number): BatchId[] {
    return write(this.#db, () => {
      const ids = this.#statements.expire.all({ nowMs }).map(({ id }) => id);
      for (const id of ids) this.#statements.closeFreeChunks.run({ id, nowMs });
      return ids;
    });
  }

  closeAbandonedChunks(nowMs: number): number {
    return this.#statements.closeAbandonedChunks.run({ nowMs }).changes;
  }
}
