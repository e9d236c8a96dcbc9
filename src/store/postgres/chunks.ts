/**
 * Chunks while their batch is in progress: leased, journaled, closed.
 *
 * Every transaction locks a chunk before its batch. A transaction that begins with the batch passes over locked chunks
 * (`skip locked`), and a later pass finds them.
 */

import type { BatchId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { ClaimedChunk, Segment, SegmentEntry } from "../chunks.ts";
import type { ChunkLease } from "../leases.ts";
import { hasStarted, isOpenChunk, maySend, statusIn } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, asc, eq, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { type Bid, claimedBy, isFree, isHeldChunk } from "./leases.ts";
import { batchFromRow, chunkFromRow } from "./rows.ts";
import { batches, chunks, segments } from "./schema.ts";
import { addSegment, closedChunk, heldChunk, removeSegments } from "./segments.ts";

export class PostgresChunks {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * The segments are read after the claim has been committed. A statement reads what was committed before it began, and a
   * former holder whose lease ran out may write until the claim. Its last segment would be missed, and its lines sent again.
   */
  async claim(
    claim: Bid & { readonly batchId: BatchId; readonly model: string },
  ): Promise<ClaimedChunk | null> {
    const [row] = await this.#db.change((db) => claimFirst(db, claim));
    if (row === undefined) return null;
    const { chunk, batch, inputBlobKey } = row;
    // An open chunk keeps both rows: `forgetChunks` and `listUnusedFiles` leave them alone.
    if (batch === null || inputBlobKey === null) {
      throw new Error(`chunk ${chunk.number} of ${chunk.batchId} has lost its batch or its input`);
    }
    return {
      lease: { batchId: chunk.batchId, chunkNumber: chunk.number, epoch: chunk.leaseEpoch },
      chunk: chunkFromRow(chunk),
      batch: batchFromRow(batch),
      inputBlobKey,
      failureCount: chunk.failureCount,
      segments: await this.#db.read((db) => segmentsOf(db, chunk)),
    };
  }

  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean> {
    return this.#db.change((db) => addSegment(db, heldChunk(lease), entry));
  }

  removeSegmentsIfLeased(lease: ChunkLease, blobKeys: readonly string[]): Promise<boolean> {
    return this.#db.transaction(async (db) => {
      const held = await db
        .select({ number: chunks.number })
        .from(chunks)
        .where(isHeldChunk(lease))
        .for("no key update");
      if (held.length === 0) return false;
      await removeSegments(db, lease.batchId, blobKeys);
      return true;
    });
  }

  async countFailureIfLeased(lease: ChunkLease): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db.update(chunks).set({ failureCount: sql`failure_count + 1` }).where(isHeldChunk(lease)),
    );
    return rowCount === 1;
  }

  closeIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null, now: SQL): Promise<boolean> {
    const closed = closedChunk(lease, now);
    return this.#db.transaction(async (db) => {
      const isClosed =
        lastEntry === null
          ? (await db.execute(closed)).rowCount === 1
          : await addSegment(db, closed, lastEntry);
      if (!isClosed) return false;
      await finalizeBatchIfDone(db, lease.batchId, now);
      return true;
    });
  }
}

function claimFirst(db: Db, claim: Bid & { readonly batchId: BatchId; readonly model: string }) {
  const { batchId, model, now } = claim;
  const claimed = db.$with("claimed").as(
    db
      .update(chunks)
      .set(claimedBy(claim))
      .where(
        sql`sequence = (
          select sequence from chunks
          where batch_id = ${batchId} and model = ${sql.param(model, chunks.model)}
            and ${isOpenChunk} and ${isFree(now)}
          order by number limit 1 for update skip locked)
        and exists (
          select 1 from batches
          where id = ${batchId} and ${maySend} and ${hasStarted} and expires_at_ms > ${now})`,
      )
      .returning(),
  );
  const { batchId: ofBatch, number, model: ofModel, lineCount, extents } = claimed;
  const { failureCount, leaseEpoch } = claimed;
  return db
    .with(claimed)
    .select({
      chunk: {
        ...{ batchId: ofBatch, number, model: ofModel, lineCount, extents },
        ...{ failureCount, leaseEpoch },
      },
      batch: batches,
      inputBlobKey: files.blobKey,
    })
    .from(claimed)
    .leftJoin(batches, eq(batches.id, ofBatch))
    .leftJoin(files, and(eq(files.project, batches.project), eq(files.id, batches.inputFileId)));
}

function segmentsOf(
  db: Db,
  { batchId, number }: { readonly batchId: BatchId; readonly number: number },
): Promise<Segment[]> {
  const { blobKey, bytes, crc32 } = segments;
  return db
    .select({ blobKey, bytes, crc32 })
    .from(segments)
    .where(and(eq(segments.batchId, batchId), eq(segments.chunkNumber, number)))
    .orderBy(asc(segments.sequence));
}

/**
 * Two workers may close the last two chunks at once, and neither sees the commit of the other. Each therefore locks the
 * batch first. The second one waits, and its next statement sees the chunk that the first one has closed.
 */
async function finalizeBatchIfDone(db: Db, batchId: BatchId, now: SQL): Promise<void> {
  const isBatch = eq(batches.id, batchId);
  await db.select({ id: batches.id }).from(batches).where(isBatch).for("no key update");
  await db
    .update(batches)
    .set({ status: "finalizing", finalizingAtMs: now })
    .where(
      and(
        isBatch,
        statusIn(...statusesBefore("finalizing")),
        sql`stop_reason is null`,
        sql`not exists (select 1 from chunks where batch_id = ${batchId} and ${isOpenChunk})`,
      ),
    );
}
