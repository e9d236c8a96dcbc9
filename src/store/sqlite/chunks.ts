/**
 * Chunks while their batch is in progress: leased, journaled, closed.
 *
 * The scheduler claims up to 50 times a second, while thousands of chunks may be open. A claim reads a handful of
 * index entries, however many chunks there are: it takes 0.15 ms with 20,000 chunks over 500 batches. No statement
 * may fall back to a scan of every row: `indexed by` makes SQLite refuse it instead.
 */

import type { BatchId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import type { ClaimedChunk, SegmentEntry, WantedChunks } from "../chunks.ts";
import type { Claim } from "../claim.ts";
import type { ChunkLease } from "../leases.ts";
import { batchFromRow, chunkFromRow } from "../rows.ts";
import {
  claimableChunks,
  hasStarted,
  isOpenChunk,
  isSampling,
  maySend,
  statusIn,
} from "./conditions.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { CLAIMED, claimValues, isHeldChunk, NO_LEASE } from "./leases.ts";
import { firstFree } from "./open-lists.ts";
import { batches, chunks } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";
import type { SqliteSegments } from "./segments.ts";
import type { WalSync } from "./wal-sync.ts";

const isRunning = sql`${maySend} and ${hasStarted} and expires_at_ms > ${placeholder("nowMs")}`;

const isBatch = eq(batches.id, placeholder("batchId"));

const prepareClaims = (db: Db) => ({
  claim: db
    .update(chunks)
    .set(CLAIMED)
    .where(
      and(
        sql`sequence = ${firstFree(sql`${placeholder("batchId")}`, sql`${placeholder("model")}`)}`,
        sql`exists (select 1 from batches where id = ${placeholder("batchId")} and ${isRunning})`,
      ),
    )
    .returning()
    .prepare(),
  findBatch: db.select().from(batches).where(isBatch).prepare(),
  findInputBlobKey: db
    .select({ blobKey: files.blobKey })
    .from(files)
    .where(isInputOfBatch)
    .prepare(),
});

const FINALIZING: BatchStatus = "finalizing";

/** What the last claimable chunk changes: it pauses a batch after its sample, and ends any other. */
const afterLastChunk = {
  status: sql`case when ${isSampling} then status else ${FINALIZING} end`,
  finalizingAtMs: sql`case when ${isSampling} then finalizing_at_ms else ${placeholder("nowMs")} end`,
  pausedAtMs: sql`case when ${isSampling} then coalesce(paused_at_ms, ${placeholder("nowMs")}) else paused_at_ms end`,
  pauseReason: sql`case when ${isSampling} then 'sample' else pause_reason end`,
  sampleChunkCount: null,
};

const prepareWrites = (db: Db) => ({
  findHeld: db.select({ number: chunks.number }).from(chunks).where(isHeldChunk).prepare(),
  resetFailures: db
    .update(chunks)
    .set({ failureCount: 0 })
    .where(and(isHeldChunk, sql`failure_count > 0`))
    .prepare(),
  countFailure: db
    .update(chunks)
    .set({ failureCount: sql`failure_count + 1` })
    .where(isHeldChunk)
    .prepare(),
  close: db
    .update(chunks)
    .set({ closedAtMs: sql`${placeholder("nowMs")}`, ...NO_LEASE })
    .where(isHeldChunk)
    .prepare(),
  finalizeBatchIfDone: db
    .update(batches)
    .set(afterLastChunk)
    .where(
      and(
        isBatch,
        statusIn(...statusesBefore("finalizing")),
        sql`stop_reason is null`,
        sql`not exists (
          select 1 from chunks
          where batch_id = batches.id and ${isOpenChunk} and number < ${claimableChunks})`,
      ),
    )
    .prepare(),
});

interface ChunkParts {
  readonly segments: SqliteSegments;
  readonly wal: WalSync;
}

export class SqliteChunks {
  readonly #db: Db;
  readonly #now: Now;
  readonly #segments: SqliteSegments;
  readonly #wal: WalSync;
  readonly #claims: ReturnType<typeof prepareClaims>;
  readonly #writes: ReturnType<typeof prepareWrites>;

  constructor(db: Db, now: Now, { segments, wal }: ChunkParts) {
    this.#db = db;
    this.#now = now;
    this.#segments = segments;
    this.#wal = wal;
    this.#claims = prepareClaims(db);
    this.#writes = prepareWrites(db);
  }

  async claimChunks({
    wanted,
    ...claim
  }: Claim & { readonly wanted: readonly WantedChunks[] }): Promise<ClaimedChunk[]> {
    const values = claimValues(claim, this.#now());
    return writeUnsynced(this.#db, () => {
      const claimed: ClaimedChunk[] = [];
      for (const { batchId, model, count } of wanted) {
        for (let n = 0; n < count; n++) {
          const chunk = this.#claimFirst(values, batchId, model);
          if (chunk === null) break;
          claimed.push(chunk);
        }
      }
      return claimed;
    });
  }

  #claimFirst(
    values: ReturnType<typeof claimValues>,
    batchId: BatchId,
    model: string,
  ): ClaimedChunk | null {
    const row = this.#claims.claim.get({ ...values, batchId, model });
    if (row === undefined) return null;
    const batch = this.#claims.findBatch.get({ batchId: row.batchId });
    const input = batch && this.#claims.findInputBlobKey.get({ ...batch });
    // An open chunk has both rows: `forgetChunks` and `listUnusedFiles` keep them.
    if (batch === undefined || input === undefined) {
      throw new Error(`chunk ${row.number} of ${row.batchId} has lost its batch or its input`);
    }
    return {
      lease: { batchId: row.batchId, chunkNumber: row.number, epoch: row.leaseEpoch },
      chunk: chunkFromRow(row),
      batch: batchFromRow(batch),
      inputBlobKey: input.blobKey,
      failureCount: row.failureCount,
      segments: this.#segments.list(row.batchId, row.number, "all"),
    };
  }

  /** A repeat after a failed sync changes nothing, and syncs again. */
  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): Promise<boolean> {
    return this.#writeSynced(() => {
      if (this.#writes.findHeld.get({ ...lease }) === undefined) return false;
      this.#addSegment(lease, entry);
      return true;
    });
  }

  async removeSegmentsIfLeased(lease: ChunkLease, blobKeys: readonly string[]): Promise<boolean> {
    return write(this.#db, () => {
      if (this.#writes.findHeld.get({ ...lease }) === undefined) return false;
      this.#segments.remove(lease.batchId, blobKeys);
      return true;
    });
  }

  async countChunkFailureIfLeased(lease: ChunkLease): Promise<boolean> {
    return this.#writes.countFailure.run({ ...lease }).changes === 1;
  }

  closeChunkIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null): Promise<boolean> {
    const nowMs = this.#now();
    return this.#writeSynced(() => {
      if (this.#writes.close.run({ ...lease, nowMs }).changes === 0) return false;
      if (lastEntry !== null) this.#addSegment(lease, lastEntry);
      this.#writes.finalizeBatchIfDone.run({ batchId: lease.batchId, nowMs });
      return true;
    });
  }

  /** The journal commits too often for a sync on the event loop. Resolves when the change survives a power cut. */
  async #writeSynced(change: () => boolean): Promise<boolean> {
    const isChanged = writeUnsynced(this.#db, change);
    if (isChanged) await this.#wal.sync();
    return isChanged;
  }

  /** A new segment is progress, so it sets the count of failures back. */
  #addSegment(lease: ChunkLease, entry: SegmentEntry): void {
    this.#segments.add(lease, entry);
    this.#writes.resetFailures.run({ ...lease });
  }
}
