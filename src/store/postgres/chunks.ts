/**
 * Chunks while their batch is in progress: leased, journaled, closed.
 *
 * Every transaction locks a chunk before its batch. A transaction that begins with the batch passes over locked chunks
 * (`skip locked`), and a later pass finds them.
 */

import type { BatchId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import type { ClaimedChunk, SegmentEntry, WantedChunks } from "../chunks.ts";
import type { Claim } from "../claim.ts";
import type { ChunkLease } from "../leases.ts";
import { batchFromRow, chunkFromRow, segmentFromRow } from "../rows.ts";
import {
  batchOf,
  hasStarted,
  isOpenChunk,
  isSampling,
  isSelected,
  maySend,
  statusIn,
} from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, asc, eq, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { arrayOf, type Bid, claimedBy, isFirstClaim, isFree, isHeldChunk } from "./leases.ts";
import { batches, chunks, segments } from "./schema.ts";
import {
  addSegment,
  closedChunk,
  closedWhileOthersRun,
  countFailures,
  heldChunk,
  removeSegments,
} from "./segments.ts";

export class PostgresChunks {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * The segments are read after the claim has been committed. A statement reads what was committed before it began, and a
   * former holder whose lease ran out may write until the claim. Its last segment would be missed, and its lines sent again.
   */
  async claimChunks(
    claim: Claim & { readonly wanted: readonly WantedChunks[] },
  ): Promise<ClaimedChunk[]> {
    const bid = this.#db.timed(claim);
    const rows = await this.#db.change((db) => claimFirst(db, bid));
    // A first claim finds no segments.
    const continued = rows
      .map(({ chunk }) => chunk)
      .filter(({ leaseEpoch }) => !isFirstClaim(leaseEpoch));
    const found =
      continued.length === 0 ? [] : await this.#db.read((db) => segmentsOf(db, continued));
    const segmentsByChunk = Map.groupBy(found, chunkKey);
    return rows.map(({ chunk, batch, inputBlobKey }) => {
      // An open chunk keeps both rows: `forgetChunks` and `listUnusedFiles` leave them alone.
      if (batch === null || inputBlobKey === null) {
        throw new Error(
          `chunk ${chunk.number} of ${chunk.batchId} has lost its batch or its input`,
        );
      }
      const ofChunk = { batchId: chunk.batchId, chunkNumber: chunk.number };
      return {
        lease: { ...ofChunk, epoch: chunk.leaseEpoch },
        chunk: chunkFromRow(chunk),
        batch: batchFromRow(batch),
        inputBlobKey,
        failureCount: chunk.failureCount,
        segments: (segmentsByChunk.get(chunkKey(ofChunk)) ?? []).map(segmentFromRow),
      };
    });
  }

  async recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean> {
    const add = async (db: Db) => {
      const added = await addSegment(db, heldChunk(lease), entry);
      if (added === "counted" && entry.failures.length > 0) {
        await countFailures(db, lease.batchId, entry);
      }
      return added !== "not_held";
    };
    // Without failures it is one statement.
    return entry.failures.length === 0 ? this.#db.change(add) : this.#db.transaction(add);
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

  async countChunkFailureIfLeased(lease: ChunkLease): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db.update(chunks).set({ failureCount: sql`failure_count + 1` }).where(isHeldChunk(lease)),
    );
    return rowCount === 1;
  }

  async closeChunkIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null): Promise<boolean> {
    const now = this.#db.now();
    // The chunk is rarely the last one of its batch, and rarely has failures. Then it takes one statement.
    if (lastEntry !== null && lastEntry.failures.length === 0) {
      const open = closedWhileOthersRun(lease, now);
      const added = await this.#db.change((db) => addSegment(db, open, lastEntry));
      if (added !== "not_held") return true;
    }
    const closed = closedChunk(lease, now);
    return this.#db.transaction(async (db) => {
      const added = lastEntry === null ? null : await addSegment(db, closed, lastEntry);
      const isClosed =
        added === null ? (await db.execute(closed)).rowCount === 1 : added !== "not_held";
      if (!isClosed) return false;
      if (added === "counted" && lastEntry !== null && lastEntry.failures.length > 0) {
        await countFailures(db, lease.batchId, lastEntry);
      }
      // The counts have locked the batch already.
      if (added !== "counted") await lockBatch(db, lease.batchId);
      await finalizeBatchIfDone(db, lease.batchId, now);
      return true;
    });
  }
}

/**
 * Finds the first free chunks of each wanted batch and model, and locks them. It passes over chunks that another worker is
 * about to take, so two workers never wait for each other.
 */
const firstFree = (wanted: readonly WantedChunks[], now: SQL): SQL => sql`
  select free.sequence
  from unnest(
    ${arrayOf(
      wanted.map(({ batchId }) => batchId),
      "text",
    )},
    ${arrayOf(
      wanted.map(({ model }) => chunks.model.mapToDriverValue(model)),
      "text",
    )},
    ${arrayOf(
      wanted.map(({ count }) => count),
      "bigint",
    )}
  ) as wanted(batch_id, model, chunk_count)
  cross join ${batchOf(sql`wanted.batch_id`)}
  cross join lateral (
    select sequence from chunks
    where batch_id = wanted.batch_id and model = wanted.model and ${isOpenChunk} and ${isFree(now)}
      and number < batches.claimable_chunks
    order by number limit wanted.chunk_count for update skip locked) as free
  where ${maySend} and ${hasStarted} and expires_at_ms > ${now}`;

function claimFirst(db: Db, claim: Bid & { readonly wanted: readonly WantedChunks[] }) {
  const { wanted, now } = claim;
  const claimed = db.$with("claimed").as(
    db
      .update(chunks)
      .set(claimedBy(claim))
      .where(isSelected(firstFree(wanted, now)))
      .returning(),
  );
  const { batchId: ofBatch, number, model, lineCount, extents } = claimed;
  const { failureCount, leaseEpoch } = claimed;
  return db
    .with(claimed)
    .select({
      chunk: {
        batchId: ofBatch,
        number,
        model,
        lineCount,
        extents,
        failureCount,
        leaseEpoch,
      },
      batch: batches,
      inputBlobKey: files.blobKey,
    })
    .from(claimed)
    .leftJoin(batches, eq(batches.id, ofBatch))
    .leftJoin(files, and(eq(files.project, batches.project), eq(files.id, batches.inputFileId)))
    .orderBy(asc(ofBatch), asc(number));
}

interface ChunkName {
  readonly batchId: BatchId;
  readonly chunkNumber: number;
}

const chunkKey = ({ batchId, chunkNumber }: ChunkName) => `${batchId} ${chunkNumber}`;

/** Returns the segments, each with its chunk, oldest first. */
function segmentsOf(db: Db, of: readonly { readonly batchId: BatchId; readonly number: number }[]) {
  const batchIds = of.map(({ batchId }) => batchId);
  const numbers = of.map(({ number }) => number);
  const { batchId, chunkNumber, blobKey, bytes, crc32 } = segments;
  return db
    .select({ batchId, chunkNumber, blobKey, bytes, crc32 })
    .from(segments)
    .where(
      sql`(batch_id, chunk_number) in (
        select * from unnest(${arrayOf(batchIds, "text")}, ${arrayOf(numbers, "bigint")}))`,
    )
    .orderBy(asc(segments.sequence));
}

async function lockBatch(db: Db, batchId: BatchId): Promise<void> {
  await db
    .select({ id: batches.id })
    .from(batches)
    .where(eq(batches.id, batchId))
    .for("no key update");
}

const FINALIZING: BatchStatus = "finalizing";

/** What the last claimable chunk changes: it pauses a batch after its sample, and ends any other. */
const afterLastChunk = (now: SQL) => ({
  status: sql`case when ${isSampling} then status else ${FINALIZING} end`,
  finalizingAtMs: sql`case when ${isSampling} then finalizing_at_ms else ${now} end`,
  pausedAtMs: sql`case when ${isSampling} then coalesce(paused_at_ms, ${now}) else paused_at_ms end`,
  pauseReason: sql`case when ${isSampling} then 'sample' else pause_reason end`,
  sampleChunkCount: null,
});

/**
 * Two workers may close the last two chunks at once, and neither sees the commit of the other. Each has therefore locked the
 * batch before. The second one waits for it, and this statement sees the chunk that the first one has closed. The last
 * chunk of a sample pauses the batch instead.
 */
async function finalizeBatchIfDone(db: Db, batchId: BatchId, now: SQL): Promise<void> {
  await db
    .update(batches)
    .set(afterLastChunk(now))
    .where(
      isSelected(sql`
        select sequence from ${batchOf(sql`${batchId}`)}
        where ${statusIn(...statusesBefore("finalizing"))} and stop_reason is null and not exists (
          select 1 from chunks
          where batch_id = ${batchId} and ${isOpenChunk} and number < batches.claimable_chunks)`),
    );
}
