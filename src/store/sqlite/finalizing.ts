/** From the last closed chunk to a final status, and what is tidied up after it. */

import type { BatchId, StopReason, StoredFile } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { Claim } from "../claim.ts";
import type { BatchLease, BatchResult, ChunkJournal, ClaimedBatch, Segment } from "../store.ts";
import { isEnding, isFinalBatch, isOpenChunk, isToTidy, statusIn } from "./conditions.ts";
import { type Db, write, writeUnsynced } from "./database.ts";
import type { SqliteDeliveries } from "./deliveries.ts";
import { and, eq, sql } from "./drizzle.ts";
import { CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE } from "./leases.ts";
import { batchFromRow, chunkFromRow, fileFromRow, segmentFromRow } from "./rows.ts";
import { batches, chunks, files, segments } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";

const prepareStatements = (db: Db) => ({
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(
      eq(
        batches.sequence,
        sql`(
          select sequence from batches as ending
          where ${isEnding} and ${isFree} and not exists (
            select 1 from chunks where batch_id = ending.id and ${isOpenChunk})
          order by sequence limit 1)`,
      ),
    )
    .returning()
    .prepare(),
  // Also a deleted one: its bytes were kept for this batch.
  findInput: db.select().from(files).where(isInputOfBatch).prepare(),
  findHeld: db
    .select({ stopReason: batches.stopReason })
    .from(batches)
    .where(isHeldBatch)
    .prepare(),
});

/** The final status that a stop reason calls for. */
function ending(stopReason: StopReason | null, nowMs: number) {
  switch (stopReason) {
    case null:
      return { status: "completed", completedAtMs: nowMs } as const;
    case "cancelled":
      return { status: "cancelled", cancelledAtMs: nowMs } as const;
    case "expired":
      return { status: "expired", expiredAtMs: nowMs } as const;
  }
}

export class SqliteFinalizing {
  readonly #db: Db;
  readonly #deliveries: SqliteDeliveries;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, deliveries: SqliteDeliveries) {
    this.#db = db;
    this.#deliveries = deliveries;
    this.#statements = prepareStatements(db);
  }

  claim(claim: Claim): ClaimedBatch | null {
    return writeUnsynced(this.#db, () => {
      const row = this.#statements.claim.get(claimValues(claim));
      if (row === undefined) return null;
      const input = this.#statements.findInput.get({ ...row });
      return {
        lease: { batchId: row.id, epoch: row.leaseEpoch },
        batch: batchFromRow(row),
        input: input === undefined ? null : fileFromRow(input),
      };
    });
  }

  listChunkJournals(batchId: BatchId): ChunkJournal[] {
    const journals = new Map<number, Segment[]>();
    const rows = this.#db
      .select()
      .from(segments)
      .where(eq(segments.batchId, batchId))
      .orderBy(segments.chunkNumber, segments.sequence)
      .all();
    for (const row of rows) {
      const journal = journals.get(row.chunkNumber);
      if (journal === undefined) journals.set(row.chunkNumber, [segmentFromRow(row)]);
      else journal.push(segmentFromRow(row));
    }
    return this.#db
      .select()
      .from(chunks)
      .where(eq(chunks.batchId, batchId))
      .orderBy(chunks.number)
      .all()
      .map((row) => ({ chunk: chunkFromRow(row), segments: journals.get(row.number) ?? [] }));
  }

  finishIfLeased(lease: BatchLease, result: BatchResult, nowMs: number): boolean {
    const { output, error, announcements } = result;
    const { batchId } = lease;
    return write(this.#db, () => {
      const held = this.#statements.findHeld.get({ ...lease });
      if (held === undefined) return false;
      const end = ending(held.stopReason, nowMs);
      const { changes } = this.#db
        .update(batches)
        .set({
          ...end,
          outputFileId: output?.id ?? null,
          errorFileId: error?.id ?? null,
          ...NO_LEASE,
        })
        .where(and(isHeldBatch, statusIn(...statusesBefore(end.status))))
        .prepare()
        .run({ ...lease });
      if (changes === 0) return false;
      const published: StoredFile[] = [output, error].filter((file) => file !== null);
      for (const file of published) this.#db.insert(files).values(file).run();
      const { status } = end;
      this.#deliveries.insert(announcements, { batchId, status, createdAtMs: nowMs });
      return true;
    });
  }

  listToTidy(limit: number): BatchId[] {
    return this.#db
      .select({ id: batches.id })
      .from(batches)
      .where(isToTidy)
      .orderBy(batches.sequence)
      .limit(limit)
      .all()
      .map(({ id }) => id);
  }

  forgetChunks(batchId: BatchId): void {
    write(this.#db, () => {
      const { changes } = this.#db
        .update(batches)
        .set({ hasChunks: false })
        .where(and(eq(batches.id, batchId), isFinalBatch))
        .run();
      if (changes === 0) return;
      this.#db.delete(segments).where(eq(segments.batchId, batchId)).run();
      this.#db.delete(chunks).where(eq(chunks.batchId, batchId)).run();
    });
  }
}
