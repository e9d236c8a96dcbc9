/**
 * Batches that are to end before their last line: cancelled by their client, or out of time.
 *
 * Stopping never waits for a worker. Chunks that nobody holds are closed at once; a holder closes its
 * own when it learns of it, and if it is gone, a later pass does. Whoever validates such a batch loses
 * the lease here, so that its commit comes to nothing.
 *
 * 30,000 batches may end together. They stop page by page, each page a commit and a turn of the event loop.
 */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId, ScopedId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import { isEnding, isOpenChunk, mayExpire, statusIn } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, eq, gt, placeholder, sql } from "./drizzle.ts";
import { isFree, NO_LEASE } from "./leases.ts";
import { batches, chunks } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

/** A finalizer, in contrast, keeps its lease: what it has written is what the batch ends with. */
const WITHOUT_VALIDATOR = {
  leaseOwner: sql`iif(${statusIn("validating")}, null, lease_owner)`,
  leaseExpiresAtMs: sql`iif(${statusIn("validating")}, null, lease_expires_at_ms)`,
  leaseEpoch: sql`lease_epoch + (${statusIn("validating")})`,
};

/** One commit stops so many batches, and closes the chunks of one that has more: some 5 ms. */
const PAGE_BATCHES = 100;
const PAGE_CHUNKS = 1_000;

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
  expireNext: db
    .update(batches)
    .set({ stopReason: "expired", ...WITHOUT_VALIDATOR })
    .where(
      sql`sequence = (
        select sequence from batches indexed by batches_that_may_expire
        where ${mayExpire} and expires_at_ms <= ${placeholder("nowMs")}
        order by expires_at_ms limit 1)`,
    )
    .returning({ id: batches.id })
    .prepare(),
  closeFreeChunks: db
    .update(chunks)
    .set(closing)
    .where(and(eq(chunks.batchId, placeholder("id")), isOpenChunk, isFree))
    .prepare(),
  listEnding: db
    .select({ id: batches.id, sequence: batches.sequence })
    .from(batches)
    .where(and(isEnding, gt(batches.sequence, placeholder("after"))))
    .orderBy(batches.sequence)
    .limit(PAGE_BATCHES)
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
      const ids: BatchId[] = [];
      let closedCount = 0;
      while (ids.length < PAGE_BATCHES && closedCount < PAGE_CHUNKS) {
        const expired = this.#statements.expireNext.get({ nowMs });
        if (expired === undefined) break;
        closedCount += this.#statements.closeFreeChunks.run({ ...expired, nowMs }).changes;
        ids.push(expired.id);
      }
      return ids;
    });
  }

  async closeAbandonedChunks(nowMs: number): Promise<number> {
    let closedCount = 0;
    let after: number | null = 0;
    while (after !== null) {
      const page = this.#closeChunksAfter(after, nowMs);
      closedCount += page.closedCount;
      after = page.next;
      if (after !== null) await nextTurn();
    }
    return closedCount;
  }

  /** `next` is the sequence of the last batch of a full page. */
  #closeChunksAfter(after: number, nowMs: number): { closedCount: number; next: number | null } {
    return write(this.#db, () => {
      const ending = this.#statements.listEnding.all({ after });
      let closedCount = 0;
      for (const { id, sequence } of ending) {
        closedCount += this.#statements.closeFreeChunks.run({ id, nowMs }).changes;
        if (closedCount >= PAGE_CHUNKS) return { closedCount, next: sequence };
      }
      const isFull = ending.length === PAGE_BATCHES;
      return { closedCount, next: isFull ? (ending.at(-1)?.sequence ?? null) : null };
    });
  }
}
