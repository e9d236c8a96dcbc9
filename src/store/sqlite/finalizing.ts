/** The end of a batch: from its last closed chunk to its final status. */

import { setImmediate as nextTurn } from "node:timers/promises";
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
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { settleDeliveries } from "./deliveries.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import type { SqliteIntents } from "./intents.ts";
import { CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE, PLACE } from "./leases.ts";
import { keepSummary } from "./runs.ts";
import { batches, chunks } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";
import type { SqliteSegments } from "./segments.ts";
import type { SqliteWebhookDeliveries } from "./webhook-deliveries.ts";

/** One commit deletes so many rows, which takes some 5 ms. */
const SEGMENT_PAGE = 1_000;

const hasEnded = sql`${isEndingShown} and ${isFree} and not exists (
  select 1 from chunks where batch_id = batches.id and ${isOpenChunk})`;

/** The first batch without an open chunk behind a project. */
const firstEnded = sql`(
  select project, sequence from batches indexed by batches_shown_to_finalize
  where ${hasEnded} and project > ${placeholder("project")}
  order by project, sequence limit 1)`;

const prepareStatements = (db: Db) => ({
  findEnded: db.select(PLACE).from(firstEnded).prepare(),
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(and(eq(batches.sequence, placeholder("sequence")), hasEnded))
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
  findHeld: db
    .select({ stopReason: batches.stopReason })
    .from(batches)
    .where(isHeldBatch)
    .prepare(),
});

interface Ending {
  readonly unstopped: "completed" | "failed";
  readonly announcements: readonly Announcement[];
  readonly nowMs: number;
}

interface FinalizingParts {
  readonly webhookDeliveries: SqliteWebhookDeliveries;
  readonly segments: SqliteSegments;
  readonly intents: SqliteIntents;
}

export class SqliteFinalizing {
  readonly #db: Db;
  readonly #now: Now;
  readonly #webhookDeliveries: SqliteWebhookDeliveries;
  readonly #segments: SqliteSegments;
  readonly #intents: SqliteIntents;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now, { webhookDeliveries, segments, intents }: FinalizingParts) {
    this.#db = db;
    this.#now = now;
    this.#webhookDeliveries = webhookDeliveries;
    this.#segments = segments;
    this.#intents = intents;
    this.#statements = prepareStatements(db);
  }

  claimBatchToFinalize(claim: Claim, turn = ANY_TURN): Promise<ClaimedBatch | null> {
    const { findEnded, claim: claimOne, findInput } = this.#statements;
    const nowMs = this.#now();
    return claimInTurn(turn, {
      find: (project) => findEnded.get({ project, nowMs }) ?? null,
      claim: ({ sequence }) =>
        writeUnsynced(this.#db, () => {
          const row = claimOne.get({ ...claimValues(claim, nowMs), sequence });
          return row === undefined ? null : claimedBatch(row, findInput.get({ ...row }));
        }),
    });
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

  async finishBatchIfLeased(lease: BatchLease, result: BatchResult): Promise<boolean> {
    const nowMs = this.#now();
    const { output, error, counts, failures, lostBlobKeys, announcements } = result;
    const { batchId } = lease;
    const published: StoredFile[] = [output, error].filter((file) => file !== null);
    if (!(await this.#removeSegments(lease, lostBlobKeys))) return false;
    return write(this.#db, () => {
      if (!published.every(({ blobKey }) => this.#intents.has(blobKey))) return false;
      const ids = { outputFileId: output?.id ?? null, errorFileId: error?.id ?? null };
      if (!this.#end(lease, { unstopped: "completed", announcements, nowMs }, ids)) return false;
      this.#db
        .update(batches)
        .set({
          completedCount: counts.completed,
          failedCount: counts.failed,
          ...this.#withFailures(batchId, failures),
        })
        .where(eq(batches.id, batchId))
        .run();
      for (const file of published) {
        this.#intents.consume(file.blobKey);
        this.#db.insert(files).values(file).run();
      }
      for (const blobKey of result.unusedBlobKeys) this.#intents.consume(blobKey);
      const { summary: results } = result;
      if (results !== undefined) keepSummary(this.#db, batchId, { results });
      return true;
    });
  }

  #withFailures(batchId: BatchId, more: readonly FailureGroup[]) {
    if (more.length === 0) return {};
    const row = this.#db
      .select({ failureGroups: batches.failureGroups })
      .from(batches)
      .where(eq(batches.id, batchId))
      .get();
    return { failureGroups: addFailures(row?.failureGroups ?? [], more) };
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

  async endWithoutResultsIfLeased(
    lease: BatchLease,
    { faults, announcements }: BatchFailure,
  ): Promise<boolean> {
    const nowMs = this.#now();
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
    const end = endingOf(held.stopReason, unstopped, nowMs);
    const { changes } = this.#db
      .update(batches)
      .set({ ...end, ...changed, ...NO_LEASE })
      .where(and(isHeldBatch, statusIn(...statusesBefore(end.status))))
      .prepare()
      .run({ ...lease });
    if (changes === 0) return false;
    const event = { batchId: lease.batchId, status: end.status, createdAtMs: nowMs };
    this.#webhookDeliveries.insert(announcements, event);
    const { outputFileId = null, errorFileId = null } = changed;
    settleDeliveries(this.#db, { ...event, outputFileId, errorFileId, nowMs });
    return true;
  }
}
