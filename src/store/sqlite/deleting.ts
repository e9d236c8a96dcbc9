/**
 * Batches that clients delete. The mark is one commit. The rows follow page by page, once no chunk and no delivery is open:
 * a holder may write until it has closed its chunk, and a delivery removes what it has left at its place.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId, ScopedId, UntrustedId } from "../../batch/batch.ts";
import type { DeletingStore } from "../deleting.ts";
import { isBehind } from "../sql/behind.ts";
import { isDeleted, isListed, isOpenChunk, isOpenDelivery } from "./conditions.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { endDeliveries } from "./deliveries.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { NO_LEASE } from "./leases.ts";
import { batches, webhookDeliveries } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";
import { PAGE_CHUNKS, type SqliteStopping } from "./stopping.ts";
import type { SqliteTidying } from "./tidying.ts";
import { forgetTombstones, leaveTombstones } from "./tombstones.ts";

/** The rows of a batch that others wait for stay until those have been told. */
const isOver = sql`${isDeleted} and is_awaited is not 1
  and not exists (select 1 from chunks where batch_id = batches.id and ${isOpenChunk})
  and not exists (
    select 1 from batch_deliveries where batch_id = batches.id and ${isOpenDelivery})`;

const prepareStatements = (db: Db) => ({
  mark: db
    .update(batches)
    .set({
      deletedAtMs: sql`${placeholder("nowMs")}`,
      leaseEpoch: sql`lease_epoch + 1`,
      ...NO_LEASE,
    })
    .where(isScopedBatch)
    .returning()
    .prepare(),
  findOver: db
    .select()
    .from(batches)
    .where(and(eq(batches.id, placeholder("batchId")), isOver))
    .prepare(),
  forgetWebhookDeliveries: db
    .delete(webhookDeliveries)
    .where(eq(webhookDeliveries.batchId, placeholder("batchId")))
    .prepare(),
  forgetDeliveries: db
    .delete(batchDeliveries)
    .where(eq(batchDeliveries.batchId, placeholder("batchId")))
    .prepare(),
  forgetBatch: db
    .delete(batches)
    .where(eq(batches.id, placeholder("batchId")))
    .prepare(),
});

type Row = typeof batches.$inferSelect;

interface DeletingParts {
  readonly stopping: SqliteStopping;
  readonly tidying: SqliteTidying;
}

interface Marking {
  readonly withInput: boolean;
  readonly maxChunks: number;
}

export class SqliteDeleting implements DeletingStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #parts: DeletingParts;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now, parts: DeletingParts) {
    this.#db = db;
    this.#now = now;
    this.#parts = parts;
    this.#statements = prepareStatements(db);
  }

  async deleteBatchIfPresent(
    batch: ScopedId<"batch">,
    { withInput }: Parameters<DeletingStore["deleteBatchIfPresent"]>[1],
  ): Promise<boolean> {
    return write(this.#db, () => this.mark(batch, { withInput, maxChunks: PAGE_CHUNKS }));
  }

  /**
   * Deletes a batch for clients within the transaction of the caller, which closes at most `maxChunks`. Returns false when there
   * is none.
   */
  mark(batch: ScopedId<"batch">, { withInput, maxChunks }: Marking): boolean {
    const nowMs = this.#now();
    this.#parts.stopping.cancel(batch, nowMs, maxChunks);
    const row = this.#statements.mark.get({ ...batch, nowMs });
    if (row === undefined) return false;
    this.#statements.forgetWebhookDeliveries.run({ batchId: row.id });
    endDeliveries(this.#db, row.id, nowMs);
    this.#deleteResults(row, nowMs);
    if (withInput) this.#deleteFile(row, row.inputFileId, nowMs);
    return true;
  }

  async listDeletedBatches(limit: number, after?: BatchId): Promise<BatchId[]> {
    return this.#db
      .select({ id: batches.id })
      .from(batches)
      .where(and(isOver, isBehind(batches, after)))
      .orderBy(batches.sequence)
      .limit(limit)
      .all()
      .map(({ id }) => id);
  }

  async forgetBatch(batchId: BatchId): Promise<void> {
    const nowMs = this.#now();
    if (this.#statements.findOver.get({ batchId }) === undefined) return;
    await this.#parts.tidying.deleteJournalRows(batchId);
    await nextTurn();
    // What a power cut takes back is found again.
    writeUnsynced(this.#db, () => {
      const row = this.#statements.findOver.get({ batchId });
      if (row === undefined) return;
      this.#deleteResults(row, nowMs);
      this.#statements.forgetWebhookDeliveries.run({ batchId });
      this.#statements.forgetDeliveries.run({ batchId });
      leaveTombstones(this.#db, "batches", eq(batches.id, batchId), nowMs);
      this.#statements.forgetBatch.run({ batchId });
    });
  }

  forgetTombstones(): Promise<void> {
    const nowMs = this.#now();
    return forgetTombstones(this.#db, nowMs);
  }

  #deleteResults(row: Row, nowMs: number): void {
    for (const id of [row.outputFileId, row.errorFileId]) {
      if (id !== null) this.#deleteFile(row, id, nowMs);
    }
  }

  #deleteFile({ project }: Row, id: UntrustedId<"file">, nowMs: number): void {
    this.#db
      .update(files)
      .set({ deletedAtMs: nowMs })
      .where(and(isFile({ project, id }), isListed))
      .run();
  }
}
