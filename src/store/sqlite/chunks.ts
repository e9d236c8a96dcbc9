/**
 * Chunks while their batch is in progress: found, leased, journaled, closed.
 *
 * The scheduler lists what can be claimed once a second, and more often while batches come and go; it claims up to 50
 * times a second, while thousands of chunks may be open. Both read a handful of index entries for each batch and
 * route, however many chunks there are: with 20,000 of them open over 500 batches, each for one of 20 routes, 3 ms
 * for the list and 0.15 ms for a claim. What is left to do is summed up once a second, from the index alone, in 6 ms.
 * `indexed by` makes SQLite refuse a statement rather than fall back to a look at every row.
 */

import type { BatchId } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { Claim } from "../claim.ts";
import type {
  ChunkLease,
  ClaimedChunk,
  OpenBatch,
  RunnableChunks,
  SegmentEntry,
} from "../store.ts";
import { isOpenChunk, mayExpire, statusIn } from "./conditions.ts";
import { type Db, write, writeUnsynced } from "./database.ts";
import { and, eq, placeholder, type SQL, sql } from "./drizzle.ts";
import { CLAIMED, claimValues, isFree, isHeldChunk, NO_LEASE } from "./leases.ts";
import { batchFromRow, chunkFromRow } from "./rows.ts";
import { batches, chunks, files } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";
import type { SqliteSegments } from "./segments.ts";

const isRunning = sql`${mayExpire} and expires_at_ms > ${placeholder("nowMs")}`;

/** The first chunk of `route` in `batchId` that nobody holds. */
const firstFree = (batchId: SQL, route: SQL): SQL => sql`(
  select sequence from chunks indexed by chunks_open_by_batch
  where batch_id = ${batchId} and route = ${route} and ${isOpenChunk} and ${isFree}
  order by number limit 1)`;

/** Goes through the index from each route of each batch to the next (a loose index scan). */
const runnable = sql`
  with recursive open(batch_id, route) as (
    select id, (
      select min(route) from chunks indexed by chunks_open_by_batch
      where batch_id = batches.id and ${isOpenChunk})
    from batches where ${isRunning}
    union all
    select batch_id, (
      select min(chunks.route) from chunks indexed by chunks_open_by_batch
      where chunks.batch_id = open.batch_id and ${isOpenChunk} and chunks.route > open.route)
    from open where route is not null)
  select
    batches.id as batch_id, project, priority, created_at_ms, expires_at_ms,
    total_count - completed_count - failed_count as remaining, chunks.route as route, line_count
  from open
  join chunks on chunks.sequence = ${firstFree(sql`open.batch_id`, sql`open.route`)}
  join batches on batches.id = open.batch_id`;

/** Every open chunk, but in the order of the index and from nowhere else. */
const openWork = sql`
  select batch_id, route, sum(line_count) as line_count, count(lease_expires_at_ms) > 0 as is_held
  from chunks indexed by chunks_open_by_batch where ${isOpenChunk} group by batch_id, route`;

const isBatch = eq(batches.id, placeholder("batchId"));

const prepareClaims = (db: Db) => ({
  listRunnable: db
    .select({
      batchId: sql<BatchId>`batch_id`,
      project: sql<string>`project`,
      priority: sql<number>`priority`,
      createdAtMs: sql<number>`created_at_ms`,
      deadlineAtMs: sql<number>`expires_at_ms`,
      route: sql<string>`route`,
      nextLineCount: sql<number>`line_count`,
      remainingLineCount: sql<number>`remaining`,
    })
    .from(sql`(${runnable})`)
    .prepare(),
  claim: db
    .update(chunks)
    .set(CLAIMED)
    .where(
      and(
        sql`sequence = ${firstFree(sql`${placeholder("batchId")}`, sql`${placeholder("route")}`)}`,
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

const prepareLists = (db: Db) => ({
  openBatches: db
    .select({
      batchId: batches.id,
      project: batches.project,
      priority: batches.priority,
      createdAtMs: batches.createdAtMs,
      deadlineAtMs: batches.expiresAtMs,
      isValidated: sql<number>`has_chunks`,
      remainingLineCount: sql<number>`total_count - completed_count - failed_count`,
    })
    .from(batches)
    .where(mayExpire)
    .orderBy(batches.sequence)
    .prepare(),
  openWork: db
    .select({
      batchId: sql<BatchId>`batch_id`,
      route: sql<string>`route`,
      lineCount: sql<number>`line_count`,
      isHeld: sql<number>`is_held`,
    })
    .from(sql`(${openWork})`)
    .prepare(),
});

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
    .set({ status: "finalizing", finalizingAtMs: sql`${placeholder("nowMs")}` })
    .where(
      and(
        isBatch,
        statusIn(...statusesBefore("finalizing")),
        sql`stop_reason is null`,
        sql`not exists (select 1 from chunks where batch_id = batches.id and ${isOpenChunk})`,
      ),
    )
    .prepare(),
});

export class SqliteChunks {
  readonly #db: Db;
  readonly #segments: SqliteSegments;
  readonly #claims: ReturnType<typeof prepareClaims>;
  readonly #lists: ReturnType<typeof prepareLists>;
  readonly #writes: ReturnType<typeof prepareWrites>;

  constructor(db: Db, segments: SqliteSegments) {
    this.#db = db;
    this.#segments = segments;
    this.#claims = prepareClaims(db);
    this.#lists = prepareLists(db);
    this.#writes = prepareWrites(db);
  }

  listRunnable(nowMs: number): RunnableChunks[] {
    return this.#claims.listRunnable.all({ nowMs });
  }

  listOpenBatches(): OpenBatch[] {
    const work = Map.groupBy(this.#lists.openWork.all(), ({ batchId }) => batchId);
    return this.#lists.openBatches.all().map(({ isValidated, ...batch }) => {
      const ofBatch = work.get(batch.batchId) ?? [];
      return {
        ...batch,
        isValidated: isValidated === 1,
        isSending: ofBatch.some(({ isHeld }) => isHeld === 1),
        work: ofBatch.map(({ route, lineCount }) => ({ route, lineCount })),
      };
    });
  }

  claim(claim: Claim & { readonly batchId: BatchId; readonly route: string }): ClaimedChunk | null {
    return writeUnsynced(this.#db, () => {
      const { batchId, route } = claim;
      const row = this.#claims.claim.get({ ...claimValues(claim), batchId, route });
      if (row === undefined) return null;
      const batch = this.#claims.findBatch.get({ batchId: row.batchId });
      const input = batch && this.#claims.findInputBlobKey.get({ ...batch });
      // Rows of open chunks keep both: `forgetChunks` and `listUnusedFiles` see to it.
      if (batch === undefined || input === undefined) {
        throw new Error(`chunk ${row.number} of ${row.batchId} has lost its batch or its input`);
      }
      return {
        lease: { batchId: row.batchId, chunkNumber: row.number, epoch: row.leaseEpoch },
        chunk: chunkFromRow(row),
        batch: batchFromRow(batch),
        inputBlobKey: input.blobKey,
        failureCount: row.failureCount,
        segments: this.#segments.list(row.batchId, row.number),
      };
    });
  }

  recordSegmentIfLeased(lease: ChunkLease, entry: SegmentEntry): boolean {
    return write(this.#db, () => {
      if (this.#writes.findHeld.get({ ...lease }) === undefined) return false;
      this.#addSegment(lease, entry);
      return true;
    });
  }

  dropSegmentsIfLeased(lease: ChunkLease, blobKeys: readonly string[]): boolean {
    return write(this.#db, () => {
      if (this.#writes.findHeld.get({ ...lease }) === undefined) return false;
      this.#segments.drop(lease.batchId, blobKeys);
      return true;
    });
  }

  countFailureIfLeased(lease: ChunkLease): boolean {
    return this.#writes.countFailure.run({ ...lease }).changes === 1;
  }

  closeIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null, nowMs: number): boolean {
    return write(this.#db, () => {
      if (this.#writes.close.run({ ...lease, nowMs }).changes === 0) return false;
      if (lastEntry !== null) this.#addSegment(lease, lastEntry);
      this.#writes.finalizeBatchIfDone.run({ batchId: lease.batchId, nowMs });
      return true;
    });
  }

  /** Whatever kept earlier runs from their lines, this one has come further. */
  #addSegment(lease: ChunkLease, entry: SegmentEntry): void {
    this.#segments.add(lease, entry);
    this.#writes.resetFailures.run({ ...lease });
  }
}
