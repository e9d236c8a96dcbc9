/** The end of a batch: from its last closed chunk to its final status. */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId, StopReason, StoredFile } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { Announcement } from "../deliveries.ts";
import type { BatchResult, ChunkJournal, IncompleteChunk } from "../finalizing.ts";
import type { BatchLease, ClaimedBatch } from "../leases.ts";
import { batchFromRow, chunkFromRow, fileFromRow } from "../rows.ts";
import type { BatchFailure } from "../validation.ts";
import { hasStarted, isEnding, isListed, isOpenChunk, statusIn } from "./conditions.ts";
import { type Db, write, writeUnsynced } from "./database.ts";
import type { SqliteDeliveries } from "./deliveries.ts";
import { and, eq, gt, placeholder, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import type { SqliteIntents } from "./intents.ts";
import { type Bid, CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE } from "./leases.ts";
import { batches, chunks } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";
import type { SqliteSegments } from "./segments.ts";

/** One turn of the event loop reads the segments of so many chunks: a slow upstream makes a segment of each line. */
const JOURNAL_PAGE = 8;
/** One commit deletes so many rows, which takes some 5 ms. */
const SEGMENT_PAGE = 1_000;

const prepareStatements = (db: Db) => ({
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(
      eq(
        batches.sequence,
        sql`(
          select sequence from batches as ending
          where ${isEnding} and ${isListed} and ${isFree} and not exists (
            select 1 from chunks where batch_id = ending.id and ${isOpenChunk})
          order by sequence limit 1)`,
      ),
    )
    .returning()
    .prepare(),
  // The file may be deleted: its bytes were kept for this batch.
  findInput: db.select().from(files).where(isInputOfBatch).prepare(),
  reopen: db
    .update(chunks)
    .set({ closedAtMs: null, failureCount: 0 })
    .where(
      and(
        eq(chunks.batchId, placeholder("batchId")),
        eq(chunks.number, placeholder("chunkNumber")),
      ),
    )
    .prepare(),
  findStarted: db
    .select({ id: batches.id })
    .from(batches)
    .where(and(eq(batches.id, placeholder("batchId")), hasStarted))
    .prepare(),
  // Chunks are numbered by their place in the batch, from 0.
  listChunks: db
    .select()
    .from(chunks)
    .where(and(eq(chunks.batchId, placeholder("batchId")), gt(chunks.number, placeholder("after"))))
    .orderBy(chunks.number)
    .limit(JOURNAL_PAGE)
    .prepare(),
  findHeld: db
    .select({ stopReason: batches.stopReason })
    .from(batches)
    .where(isHeldBatch)
    .prepare(),
});

/** Returns the final status that a stop reason calls for; `unstopped` is the status of a batch without one. */
function ending(stopReason: StopReason | null, unstopped: "completed" | "failed", nowMs: number) {
  switch (stopReason) {
    case null:
      return unstopped === "completed"
        ? ({ status: "completed", completedAtMs: nowMs } as const)
        : ({ status: "failed", failedAtMs: nowMs } as const);
    case "cancelled":
      return { status: "cancelled", cancelledAtMs: nowMs } as const;
    case "expired":
      return { status: "expired", expiredAtMs: nowMs } as const;
  }
}

const NOTHING_DONE = {
  failureGroups: null,
  completedCount: 0,
  failedCount: 0,
  inputTokens: 0,
  cachedTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0,
  totalTokens: 0,
} as const;

interface Ending {
  readonly unstopped: "completed" | "failed";
  readonly announcements: readonly Announcement[];
  readonly nowMs: number;
}

interface FinalizingParts {
  readonly deliveries: SqliteDeliveries;
  readonly segments: SqliteSegments;
  readonly intents: SqliteIntents;
}

export class SqliteFinalizing {
  readonly #db: Db;
  readonly #deliveries: SqliteDeliveries;
  readonly #segments: SqliteSegments;
  readonly #intents: SqliteIntents;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, { deliveries, segments, intents }: FinalizingParts) {
    this.#db = db;
    this.#deliveries = deliveries;
    this.#segments = segments;
    this.#intents = intents;
    this.#statements = prepareStatements(db);
  }

  claim(claim: Bid): ClaimedBatch | null {
    return writeUnsynced(this.#db, () => {
      const row = this.#statements.claim.get(claimValues(claim));
      if (row === undefined) return null;
      const input = this.#statements.findInput.get({ ...row });
      return {
        lease: { batchId: row.id, epoch: row.leaseEpoch },
        batch: batchFromRow(row),
        input: input === undefined ? null : fileFromRow(input),
        failureCount: row.failureCount,
      };
    });
  }

  async listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]> {
    const journals: ChunkJournal[] = [];
    if (this.#statements.findStarted.get({ batchId }) === undefined) return journals;
    for (;;) {
      const page = this.#statements.listChunks.all({ batchId, after: journals.length - 1 });
      for (const row of page) {
        const ofChunk = this.#segments.list(batchId, row.number);
        journals.push({ chunk: chunkFromRow(row), segments: ofChunk });
      }
      if (page.length < JOURNAL_PAGE) return journals;
      await nextTurn();
    }
  }

  async reopenChunksIfLeased(
    lease: BatchLease,
    incomplete: readonly IncompleteChunk[],
  ): Promise<boolean> {
    const { batchId } = lease;
    const lostBlobKeys = incomplete.flatMap((chunk) => chunk.lostBlobKeys);
    if (!(await this.#removeSegments(lease, lostBlobKeys))) return false;
    return write(this.#db, () => {
      const { changes } = this.#db
        .update(batches)
        .set({ status: "in_progress", finalizingAtMs: null, ...NO_LEASE })
        .where(
          and(isHeldBatch, statusIn(...statusesBefore("in_progress")), sql`stop_reason is null`),
        )
        .prepare()
        .run({ ...lease });
      if (changes === 0) return false;
      for (const { chunkNumber } of incomplete) {
        this.#statements.reopen.run({ batchId, chunkNumber });
      }
      return true;
    });
  }

  async finishIfLeased(lease: BatchLease, result: BatchResult, nowMs: number): Promise<boolean> {
    const { output, error, counts, lostBlobKeys, announcements } = result;
    const { batchId } = lease;
    const published: StoredFile[] = [output, error].filter((file) => file !== null);
    if (!(await this.#removeSegments(lease, lostBlobKeys))) return false;
    return write(this.#db, () => {
      if (!published.every(({ blobKey }) => this.#intents.has(blobKey))) return false;
      const ids = { outputFileId: output?.id ?? null, errorFileId: error?.id ?? null };
      if (!this.#end(lease, { unstopped: "completed", announcements, nowMs }, ids)) return false;
      this.#db
        .update(batches)
        .set({ completedCount: counts.completed, failedCount: counts.failed })
        .where(eq(batches.id, batchId))
        .run();
      for (const file of published) {
        this.#intents.consume(file.blobKey);
        this.#db.insert(files).values(file).run();
      }
      return true;
    });
  }

  /**
   * Drops the segments before the commit that ends the batch or takes it back, as they may be 50,000. After a crash
   * between the two, the next finalizer finds lines without a record, whether their segments have rows or not.
   * Returns false when the lease is lost.
   */
  async #removeSegments(lease: BatchLease, blobKeys: readonly string[]): Promise<boolean> {
    for (let from = 0; from < blobKeys.length; from += SEGMENT_PAGE) {
      const isHeld = write(this.#db, () => {
        if (this.#statements.findHeld.get({ ...lease }) === undefined) return false;
        this.#segments.remove(lease.batchId, blobKeys.slice(from, from + SEGMENT_PAGE));
        return true;
      });
      if (!isHeld) return false;
      await nextTurn();
    }
    return true;
  }

  endWithoutResultsIfLeased(
    lease: BatchLease,
    { faults, announcements }: BatchFailure,
    nowMs: number,
  ): boolean {
    const how = { unstopped: "failed", announcements, nowMs } as const;
    return write(this.#db, () => this.#end(lease, how, { faults, ...NOTHING_DONE }));
  }

  /** Sets the final status and `changed`, and writes the announcements; part of a transaction. */
  #end(
    lease: BatchLease,
    { unstopped, announcements, nowMs }: Ending,
    changed: Partial<typeof batches.$inferInsert>,
  ): boolean {
    const held = this.#statements.findHeld.get({ ...lease });
    if (held === undefined) return false;
    const end = ending(held.stopReason, unstopped, nowMs);
    const { changes } = this.#db
      .update(batches)
      .set({ ...end, ...changed, ...NO_LEASE })
      .where(and(isHeldBatch, statusIn(...statusesBefore(end.status))))
      .prepare()
      .run({ ...lease });
    if (changes === 0) return false;
    const event = { batchId: lease.batchId, status: end.status, createdAtMs: nowMs };
    this.#deliveries.insert(announcements, event);
    return true;
  }
}
