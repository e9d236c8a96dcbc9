/** The end of a batch: from its last closed chunk to its final status. */

import type { BatchId, StopReason, StoredFile } from "../../batch/batch.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { Segment } from "../chunks.ts";
import type { Announcement } from "../deliveries.ts";
import type { BatchResult, ChunkJournal, IncompleteChunk } from "../finalizing.ts";
import type { BatchLease, ClaimedBatch } from "../leases.ts";
import { batchFromRow, chunkFromRow, fileFromRow, segmentFromRow } from "../rows.ts";
import type { BatchFailure } from "../validation.ts";
import { isEnding, isListed, isOpenChunk, statusIn } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { insertDeliveries } from "./deliveries.ts";
import { and, eq, gt, lte, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { insertFile } from "./files.ts";
import { consumeIntent, haveIntents } from "./intents.ts";
import { arrayOf, type Bid, claimedBy, isFree, isHeldBatch, NO_LEASE } from "./leases.ts";
import { batches, chunks, segments } from "./schema.ts";
import { isInputOf } from "./scope.ts";
import { removeSegments } from "./segments.ts";

/** Chunks whose segments are read at a time: a slow upstream makes a segment of each line. */
const JOURNAL_PAGE = 64;

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
  readonly final: Final;
  readonly changed: Partial<typeof batches.$inferInsert>;
  readonly announcements: readonly Announcement[];
  readonly now: SQL;
}

export class PostgresFinalizing {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /** The claim is one statement, because every replica asks again and again, and mostly there is nothing. */
  async claim(claim: Bid): Promise<ClaimedBatch | null> {
    const [row] = await this.#db.change((db) =>
      db
        .update(batches)
        .set(claimedBy(claim))
        .where(
          sql`sequence = (
            select sequence from batches as ending
            where ${isEnding} and ${isListed} and ${isFree(claim.now)} and not exists (
              select 1 from chunks where batch_id = ending.id and ${isOpenChunk})
            order by sequence limit 1 for update skip locked)`,
        )
        .returning(),
    );
    if (row === undefined) return null;
    // A deleted input counts too: its bytes are kept while the batch is open.
    const [input] = await this.#db.read((db) => db.select().from(files).where(isInputOf(row)));
    return {
      lease: { batchId: row.id, epoch: row.leaseEpoch },
      batch: batchFromRow(row),
      input: input === undefined ? null : fileFromRow(input),
      failureCount: row.failureCount,
    };
  }

  listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]> {
    return this.#db.read(async (db) => {
      const journals: ChunkJournal[] = [];
      for (;;) {
        // The numbers are positions in the batch, from 0.
        const page = await journalsAfter(db, batchId, journals.length - 1);
        journals.push(...page);
        if (page.length < JOURNAL_PAGE) return journals;
      }
    });
  }

  reopenChunksIfLeased(
    lease: BatchLease,
    incomplete: readonly IncompleteChunk[],
  ): Promise<boolean> {
    const { batchId } = lease;
    const lostBlobKeys = incomplete.flatMap((chunk) => chunk.lostBlobKeys);
    const numbers = incomplete.map(({ chunkNumber }) => chunkNumber);
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ status: "in_progress", finalizingAtMs: null, ...NO_LEASE })
        .where(
          and(
            isHeldBatch(lease),
            statusIn(...statusesBefore("in_progress")),
            sql`stop_reason is null`,
          ),
        );
      if (rowCount === 0) return false;
      await removeSegments(db, batchId, lostBlobKeys);
      await db
        .update(chunks)
        .set({ closedAtMs: null, failureCount: 0 })
        .where(and(eq(chunks.batchId, batchId), sql`number = any(${arrayOf(numbers, "bigint")})`));
      return true;
    });
  }

  finishIfLeased(lease: BatchLease, result: BatchResult, now: SQL): Promise<boolean> {
    const { output, error, counts, lostBlobKeys, announcements } = result;
    const published: StoredFile[] = [output, error].filter((file) => file !== null);
    const changed = {
      outputFileId: output?.id ?? null,
      errorFileId: error?.id ?? null,
      completedCount: counts.completed,
      failedCount: counts.failed,
    };
    return this.#db.transaction(async (db) => {
      const blobKeys = published.map(({ blobKey }) => blobKey);
      if (!(await haveIntents(db, blobKeys))) return false;
      const final = await findEnd(db, lease, { unstopped: "completed", now });
      if (final === null) return false;
      await removeSegments(db, lease.batchId, lostBlobKeys);
      await end(db, lease.batchId, { final, changed, announcements, now });
      for (const blobKey of blobKeys) await consumeIntent(db, blobKey);
      for (const file of published) await insertFile(db, file);
      return true;
    });
  }

  endWithoutResultsIfLeased(
    lease: BatchLease,
    { faults, announcements }: BatchFailure,
    now: SQL,
  ): Promise<boolean> {
    const changed = { faults, ...NOTHING_DONE };
    return this.#db.transaction(async (db) => {
      const final = await findEnd(db, lease, { unstopped: "failed", now });
      if (final === null) return false;
      await end(db, lease.batchId, { final, changed, announcements, now });
      return true;
    });
  }
}

async function journalsAfter(db: Db, batchId: BatchId, after: number): Promise<ChunkJournal[]> {
  const page = await db
    .select()
    .from(chunks)
    .where(and(eq(chunks.batchId, batchId), gt(chunks.number, after)))
    .orderBy(chunks.number)
    .limit(JOURNAL_PAGE);
  const last = page.at(-1);
  if (last === undefined) return [];
  const rows = await db
    .select()
    .from(segments)
    .where(
      and(
        eq(segments.batchId, batchId),
        gt(segments.chunkNumber, after),
        lte(segments.chunkNumber, last.number),
      ),
    )
    .orderBy(segments.chunkNumber, segments.sequence);
  const byChunk = Map.groupBy(rows, (row) => row.chunkNumber);
  const segmentsOf = (number: number): Segment[] => (byChunk.get(number) ?? []).map(segmentFromRow);
  return page.map((row) => ({ chunk: chunkFromRow(row), segments: segmentsOf(row.number) }));
}

/** Locks the batch and returns its end. Returns null when the lease is lost, or when the batch cannot end so. */
async function findEnd(
  db: Db,
  lease: BatchLease,
  { unstopped, now }: { readonly unstopped: "completed" | "failed"; readonly now: SQL },
): Promise<Final | null> {
  const [held] = await db
    .select({ status: batches.status, stopReason: batches.stopReason })
    .from(batches)
    .where(isHeldBatch(lease))
    .for("no key update");
  if (held === undefined) return null;
  const final = ending(held.stopReason, unstopped, now);
  return statusesBefore(final.status).includes(held.status) ? final : null;
}

/** Sets the final status and records the announcements. The transaction has locked the batch before. */
async function end(
  db: Db,
  batchId: BatchId,
  { final, changed, announcements, now }: Ending,
): Promise<void> {
  await db
    .update(batches)
    .set({ ...final, ...changed, ...NO_LEASE })
    .where(eq(batches.id, batchId));
  await insertDeliveries(db, announcements, { batchId, status: final.status, createdAtMs: now });
}

type Final = ReturnType<typeof ending>;

/** Returns the final status that a stop reason calls for. A batch without one gets the status `unstopped`. */
function ending(stopReason: StopReason | null, unstopped: "completed" | "failed", now: SQL) {
  switch (stopReason) {
    case null:
      return unstopped === "completed"
        ? ({ status: "completed", completedAtMs: now } as const)
        : ({ status: "failed", failedAtMs: now } as const);
    case "cancelled":
      return { status: "cancelled", cancelledAtMs: now } as const;
    case "expired":
      return { status: "expired", expiredAtMs: now } as const;
  }
}
