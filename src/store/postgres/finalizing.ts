/** The end of a batch: from its last closed chunk to its final status. */

import type { BatchId, StoredFile } from "../../batch/batch.ts";
import { addFailures, type FailureGroup } from "../../batch/failures.ts";
import { statusesBefore } from "../../batch/status.ts";
import type { Claim } from "../claim.ts";
import { claimedBatch } from "../claimed-rows.ts";
import { type BatchResult, endingOf, type IncompleteChunk, NOTHING_DONE } from "../finalizing.ts";
import type { BatchLease, ClaimedBatch } from "../leases.ts";
import { ANY_TURN, claimInTurn } from "../project-turns.ts";
import type { BatchFailure } from "../validation.ts";
import type { Announcement } from "../webhook-deliveries.ts";
import { isEndingShown, isOpenChunk, statusIn } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { settleDeliveries } from "./deliveries.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { insertFile } from "./files.ts";
import { endIntents, haveIntents } from "./intents.ts";
import {
  arrayOf,
  type Bid,
  batchClaimedBy,
  findBehind,
  firstOf,
  isFreeBatch,
  isHeldBatch,
  NO_LEASE,
  RELEASED,
} from "./leases.ts";
import { keepSummary } from "./runs.ts";
import { batches, chunks } from "./schema.ts";
import { isInputOf } from "./scope.ts";
import { removeSegments } from "./segments.ts";
import { insertWebhookDeliveries } from "./webhook-deliveries.ts";

const hasEnded = (now: SQL): SQL => sql`${isEndingShown} and ${isFreeBatch(now)} and not exists (
  select 1 from chunks where batch_id = candidates.id and ${isOpenChunk})`;

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

  claimBatchToFinalize(claim: Claim, turn = ANY_TURN): Promise<ClaimedBatch | null> {
    const bid = this.#db.timed(claim);
    const ended = hasEnded(bid.now);
    return claimInTurn(turn, {
      find: (project) => this.#db.read((db) => findBehind(db, project, ended)),
      claim: ({ project }) => this.#claimOf(project, ended, bid),
    });
  }

  async #claimOf(project: string, ended: SQL, bid: Bid): Promise<ClaimedBatch | null> {
    const [row] = await this.#db.change((db) =>
      db
        .update(batches)
        .set(batchClaimedBy(bid))
        .where(sql`sequence = ${firstOf(project, ended)}`)
        .returning(),
    );
    if (row === undefined) return null;
    // A deleted input counts too: its bytes are kept while the batch is open.
    const [input] = await this.#db.read((db) => db.select().from(files).where(isInputOf(row)));
    return claimedBatch(row, input);
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
        .set({ status: "in_progress", finalizingAtMs: null, ...RELEASED })
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

  finishBatchIfLeased(lease: BatchLease, result: BatchResult): Promise<boolean> {
    const now = this.#db.now();
    const { output, error, unusedBlobKeys, counts, failures, lostBlobKeys, announcements } = result;
    const published: StoredFile[] = [output, error].filter((file) => file !== null);
    const changed = {
      outputFileId: output?.id ?? null,
      errorFileId: error?.id ?? null,
      completedCount: counts.completed,
      failedCount: counts.failed,
    };
    return this.#db.transaction(async (db) => {
      const blobKeys = [...published.map(({ blobKey }) => blobKey), ...unusedBlobKeys];
      if (!(await haveIntents(db, blobKeys))) return false;
      const final = await findEnd(db, lease, { unstopped: "completed", now });
      if (final === null) return false;
      await removeSegments(db, lease.batchId, lostBlobKeys);
      const grouped = await withFailures(db, lease.batchId, failures);
      await end(db, lease.batchId, {
        final,
        announcements,
        now,
        changed: { ...changed, ...grouped },
      });
      await endIntents(db, blobKeys);
      for (const file of published) await insertFile(db, file);
      const { summary: results } = result;
      if (results !== undefined) await keepSummary(db, lease.batchId, { results });
      return true;
    });
  }

  endWithoutResultsIfLeased(
    lease: BatchLease,
    { faults, announcements }: BatchFailure,
  ): Promise<boolean> {
    const now = this.#db.now();
    const changed = { faults, ...NOTHING_DONE };
    return this.#db.transaction(async (db) => {
      const final = await findEnd(db, lease, { unstopped: "failed", now });
      if (final === null) return false;
      await end(db, lease.batchId, { final, changed, announcements, now });
      return true;
    });
  }
}

/** Adds to the groups that the journal has counted. The row is locked. */
async function withFailures(db: Db, batchId: BatchId, more: readonly FailureGroup[]) {
  if (more.length === 0) return {};
  const [row] = await db
    .select({ failureGroups: batches.failureGroups })
    .from(batches)
    .where(eq(batches.id, batchId));
  return { failureGroups: addFailures(row?.failureGroups ?? [], more) };
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
  const final = endingOf(held.stopReason, unstopped, now);
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
  await insertWebhookDeliveries(db, announcements, {
    batchId,
    status: final.status,
    createdAtMs: now,
  });
  const { outputFileId = null, errorFileId = null } = changed;
  await settleDeliveries(db, { batchId, status: final.status, outputFileId, errorFileId, now });
}

type Final = ReturnType<typeof endingOf<SQL>>;
