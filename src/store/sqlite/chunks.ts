/**
 * Chunks while their batch is in progress: found, leased, journaled, closed.
 *
 * The scheduler asks for open routes and claims up to 50 times a second, while thousands of chunks may
 * be open. Both queries therefore read a handful of index entries, however many chunks there are:
 * with 20,000 of them open over 20 routes, 0.04 ms for the routes and 0.02 ms to find the chunk to
 * claim, against 7 ms each for `select distinct` and for `route in (…) order by deadline`, which visit
 * every open chunk. `indexed by` makes SQLite refuse the statement rather than fall back to that.
 */

import { statusesBefore } from "../../batch/status.ts";
import type { Claim } from "../claim.ts";
import type { ChunkLease, ClaimedChunk, SegmentEntry } from "../store.ts";
import { isOpenChunk, statusIn } from "./conditions.ts";
import { type Db, write, writeUnsynced } from "./database.ts";
import { and, eq, placeholder, type SQL, sql } from "./drizzle.ts";
import { CLAIMED, claimValues, isFree, isHeldChunk, NO_LEASE } from "./leases.ts";
import { batchFromRow, chunkFromRow, segmentFromRow } from "./rows.ts";
import { batches, chunks, files, segments } from "./schema.ts";

const isClaimable = sql`${isOpenChunk} and ${isFree} and chunks.deadline_at_ms > ${placeholder("nowMs")} and exists (
  select 1 from batches where batches.id = chunks.batch_id and batches.stop_reason is null)`;

/**
 * The open chunk of `route` whose batch expires first: the index is in this order, and also holds the
 * lease's expiry, so that chunks in work are passed over without a look at their rows.
 */
const mostUrgentOf = (route: SQL): SQL => sql`(
  select sequence from chunks indexed by chunks_open_by_route
  where route = ${route} and ${isClaimable}
  order by deadline_at_ms, sequence limit 1)`;

/** One look into the index for each wanted route, then the most urgent of those few. */
const mostUrgent = sql`(
  select candidate.sequence from json_each(${placeholder("routes")}) as wanted
  cross join chunks as candidate on candidate.sequence = ${mostUrgentOf(sql`wanted.value`)}
  order by candidate.deadline_at_ms, candidate.sequence limit 1)`;

/** Jumps through the index from each route to the next (a loose index scan), and keeps those with work. */
const openRoutes = sql`
  with recursive routes(route) as (
    select min(route) from chunks indexed by chunks_open_by_route where ${isOpenChunk}
    union all
    select (
      select min(chunks.route) from chunks indexed by chunks_open_by_route
      where ${isOpenChunk} and chunks.route > routes.route)
    from routes where routes.route is not null)
  select route from routes
  where route is not null and ${mostUrgentOf(sql`routes.route`)} is not null`;

const isBatch = eq(batches.id, placeholder("batchId"));
const add = (column: string, name: string): SQL =>
  sql`${sql.identifier(column)} + ${placeholder(name)}`;

const prepareClaims = (db: Db) => ({
  listOpenRoutes: db.select({ route: sql<string>`route` }).from(sql`(${openRoutes})`).prepare(),
  claim: db
    .update(chunks)
    .set(CLAIMED)
    .where(eq(chunks.sequence, mostUrgent))
    .returning()
    .prepare(),
  findBatch: db.select().from(batches).where(isBatch).prepare(),
  findInputBlobKey: db
    .select({ blobKey: files.blobKey })
    .from(files)
    .where(eq(files.id, placeholder("id")))
    .prepare(),
  listSegments: db
    .select()
    .from(segments)
    .where(
      and(
        eq(segments.batchId, placeholder("batchId")),
        eq(segments.chunkNumber, placeholder("number")),
      ),
    )
    .orderBy(segments.sequence)
    .prepare(),
});

const prepareWrites = (db: Db) => ({
  findHeld: db.select({ number: chunks.number }).from(chunks).where(isHeldChunk).prepare(),
  insertSegment: db
    .insert(segments)
    .values({
      batchId: placeholder("batchId"),
      chunkNumber: placeholder("chunkNumber"),
      blobKey: placeholder("blobKey"),
      bytes: placeholder("bytes"),
    })
    .prepare(),
  addToBatch: db
    .update(batches)
    .set({
      completedCount: add("completed_count", "completed"),
      failedCount: add("failed_count", "failed"),
      inputTokens: add("input_tokens", "inputTokens"),
      cachedTokens: add("cached_tokens", "cachedTokens"),
      outputTokens: add("output_tokens", "outputTokens"),
      reasoningTokens: add("reasoning_tokens", "reasoningTokens"),
      totalTokens: add("total_tokens", "totalTokens"),
    })
    .where(isBatch)
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
  readonly #claims: ReturnType<typeof prepareClaims>;
  readonly #writes: ReturnType<typeof prepareWrites>;

  constructor(db: Db) {
    this.#db = db;
    this.#claims = prepareClaims(db);
    this.#writes = prepareWrites(db);
  }

  listOpenRoutes(nowMs: number): string[] {
    return this.#claims.listOpenRoutes.all({ nowMs }).map(({ route }) => route);
  }

  claim(claim: Claim & { readonly routes: readonly string[] }): ClaimedChunk | null {
    return writeUnsynced(this.#db, () => {
      const routes = JSON.stringify(claim.routes);
      const row = this.#claims.claim.get({ ...claimValues(claim), routes });
      if (row === undefined) return null;
      const batch = this.#claims.findBatch.get({ batchId: row.batchId });
      const input = this.#claims.findInputBlobKey.get({ id: batch?.inputFileId });
      // Rows of open chunks keep both: `forgetChunks` and `listUnusedFiles` see to it.
      if (batch === undefined || input === undefined) {
        throw new Error(`chunk ${row.number} of ${row.batchId} has lost its batch or its input`);
      }
      return {
        lease: { batchId: row.batchId, chunkNumber: row.number, epoch: row.leaseEpoch },
        chunk: chunkFromRow(row),
        batch: batchFromRow(batch),
        inputBlobKey: input.blobKey,
        segments: this.#claims.listSegments.all({ ...row }).map(segmentFromRow),
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

  closeIfLeased(lease: ChunkLease, lastEntry: SegmentEntry | null, nowMs: number): boolean {
    return write(this.#db, () => {
      if (this.#writes.close.run({ ...lease, nowMs }).changes === 0) return false;
      if (lastEntry !== null) this.#addSegment(lease, lastEntry);
      this.#writes.finalizeBatchIfDone.run({ batchId: lease.batchId, nowMs });
      return true;
    });
  }

  /** The row and its counts in one commit: the counters are the sum of the segments, always. */
  #addSegment(lease: ChunkLease, { usage, ...entry }: SegmentEntry): void {
    this.#writes.insertSegment.run({ ...lease, ...entry });
    this.#writes.addToBatch.run({ ...lease, ...entry, ...usage });
  }
}
