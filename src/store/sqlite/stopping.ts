/**
 * Batches that are to end before their last line: their client cancelled them, or their time is over.
 *
 * Stopping must never wait for a worker. Chunks without a holder are closed at once, and the chunks of a very large
 * batch in later passes. A holder closes its own chunk when it learns of the stop. If the holder is gone, a later
 * pass closes the chunk. A validator of such a batch loses its lease here, so that its commit changes nothing.
 *
 * 30,000 batches may end together, and one may have thousands of chunks. They stop page by page, each page a commit
 * and a turn of the event loop.
 */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId, ScopedId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import { isEnding, isOpenChunk, mayExpire, statusIn } from "./conditions.ts";
import { type Db, type Now, write } from "./database.ts";
import { and, eq, gt, placeholder, sql } from "./drizzle.ts";
import { isFree, NO_LEASE } from "./leases.ts";
import { batches, chunks } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";

/** A validator loses its lease. A finalizer keeps its own: the batch ends with the results it has written. */
const WITHOUT_VALIDATOR = {
  leaseOwner: sql`iif(${statusIn("validating")}, null, lease_owner)`,
  leaseExpiresAtMs: sql`iif(${statusIn("validating")}, null, lease_expires_at_ms)`,
  leaseEpoch: sql`lease_epoch + (${statusIn("validating")})`,
};

/** One commit stops so many batches: some 5 ms. */
const PAGE_BATCHES = 100;
/** One commit closes so many chunks: 15 ms where routes alternate and each chunk lists 512 extents, else 1 ms. */
export const PAGE_CHUNKS = 100;

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
  listFreeChunks: db
    .select({ sequence: sql<number>`sequence` })
    .from(sql`chunks indexed by chunks_open_by_batch`)
    .where(sql`batch_id = ${placeholder("id")} and ${isOpenChunk} and ${isFree}`)
    .limit(placeholder("limit"))
    .prepare(),
  closeChunk: db
    .update(chunks)
    .set({ closedAtMs: sql`${placeholder("nowMs")}`, ...NO_LEASE })
    .where(eq(chunks.sequence, placeholder("sequence")))
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
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
    this.#statements = prepareStatements(db);
  }

  async cancelBatchIfOpen(batch: ScopedId<"batch">): Promise<boolean> {
    const nowMs = this.#now();
    return write(this.#db, () => this.cancel(batch, nowMs));
  }

  /** Cancels an open batch as a part of a transaction. A later pass closes the chunks beyond `maxChunks`. */
  cancel({ project, id }: ScopedId<"batch">, nowMs: number, maxChunks = PAGE_CHUNKS): boolean {
    const cancelled = this.#statements.cancel.get({ project, id, nowMs });
    if (cancelled === undefined) return false;
    this.#closeFreeChunks(cancelled.id, nowMs, maxChunks);
    return true;
  }

  async stopExpiredBatches(): Promise<BatchId[]> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      const ids: BatchId[] = [];
      let closedCount = 0;
      while (ids.length < PAGE_BATCHES && closedCount < PAGE_CHUNKS) {
        const expired = this.#statements.expireNext.get({ nowMs });
        if (expired === undefined) break;
        closedCount += this.#closeFreeChunks(expired.id, nowMs, PAGE_CHUNKS - closedCount);
        ids.push(expired.id);
      }
      return ids;
    });
  }

  async closeUnheldChunks(): Promise<number> {
    const nowMs = this.#now();
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

  /**
   * Closes a page of chunks. `next` is the sequence after which the next page begins, or null when there is none.
   */
  #closeChunksAfter(after: number, nowMs: number): { closedCount: number; next: number | null } {
    return write(this.#db, () => {
      const ending = this.#statements.listEnding.all({ after });
      let closedCount = 0;
      let next = after;
      for (const { id, sequence } of ending) {
        closedCount += this.#closeFreeChunks(id, nowMs, PAGE_CHUNKS - closedCount);
        // This batch may have more such chunks.
        if (closedCount === PAGE_CHUNKS) return { closedCount, next };
        next = sequence;
      }
      return { closedCount, next: ending.length === PAGE_BATCHES ? next : null };
    });
  }

  /** Closes up to `limit` chunks without a holder, and returns how many there were. */
  #closeFreeChunks(id: BatchId, nowMs: number, limit: number): number {
    const free = this.#statements.listFreeChunks.all({ id, nowMs, limit });
    for (const { sequence } of free) this.#statements.closeChunk.run({ sequence, nowMs });
    return free.length;
  }
}
