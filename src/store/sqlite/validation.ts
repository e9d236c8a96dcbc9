/**
 * The move of a batch from `validating` to `in_progress` or `failed`.
 *
 * A batch may have thousands of chunks, and where its routes alternate each lists 512 extents. Writing them takes 0.7
 * s for a million lines. The chunks are therefore written page by page, before the commit that starts the batch. Each
 * page is a commit and a turn of the event loop.
 *
 * Chunks written before that commit are a draft, which nothing may read. The next validation of the batch removes an
 * unfinished draft first. A draft whose batch ends without a start is tidied away.
 */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { PlannedChunk } from "../../batch/plan.ts";
import type { Claim } from "../claim.ts";
import { claimedBatch } from "../claimed-rows.ts";
import type { BatchLease, ClaimedBatch } from "../leases.ts";
import { ANY_TURN, claimInTurn } from "../project-turns.ts";
import { assertRoomForLines, boundsLines, type LineQuotas } from "../quotas.ts";
import { planColumns } from "../rows.ts";
import { type BatchFailure, type BatchPlan, pagesOf, type ValidationStore } from "../validation.ts";
import {
  isListed,
  isOpenBatch,
  isValidating,
  linesToSend,
  waitsForValidation,
} from "./conditions.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { settleDeliveries } from "./deliveries.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE, PLACE } from "./leases.ts";
import { keepSummary } from "./runs.ts";
import { batches, chunks } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";
import type { SqliteWebhookDeliveries } from "./webhook-deliveries.ts";

const PAGE_DELETED = 200;

/** The first waiting batch behind a project. */
const firstWaiting = sql`(
  select project, sequence from batches indexed by batches_to_validate
  where ${waitsForValidation} and ${isFree} and project > ${placeholder("project")}
  order by project, sequence limit 1)`;

/** The chunks belong to a batch that is being validated. */
const isDraft = and(isHeldBatch, waitsForValidation, eq(chunks.batchId, batches.id));

const prepareStatements = (db: Db) => ({
  findWaiting: db.select(PLACE).from(firstWaiting).prepare(),
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(and(eq(batches.sequence, placeholder("sequence")), waitsForValidation, isFree))
    .returning()
    .prepare(),
  findInput: db
    .select()
    .from(files)
    .where(
      and(
        isInputOfBatch,
        isListed,
        sql`(expires_at_ms is null or expires_at_ms > ${placeholder("nowMs")})`,
      ),
    )
    .prepare(),
  findDraft: db
    .select({ number: chunks.number })
    .from(chunks)
    .innerJoin(batches, eq(batches.id, chunks.batchId))
    .where(isDraft)
    .limit(1)
    .prepare(),
  deleteDraft: db
    .delete(chunks)
    .where(
      sql`sequence in (
        select chunks.sequence from chunks join batches on batches.id = chunks.batch_id
        where ${isDraft} limit ${sql.raw(String(PAGE_DELETED))})`,
    )
    .prepare(),
  markDraft: db
    .update(batches)
    .set({ hasChunks: true })
    .where(and(isHeldBatch, waitsForValidation))
    .prepare(),
  insertChunk: db
    .insert(chunks)
    .values({
      batchId: placeholder("batchId"),
      number: placeholder("number"),
      model: placeholder("model"),
      lineCount: placeholder("lineCount"),
      extents: placeholder("extents"),
    })
    .prepare(),
});

export class SqliteValidation implements ValidationStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #webhookDeliveries: SqliteWebhookDeliveries;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now, webhookDeliveries: SqliteWebhookDeliveries) {
    this.#db = db;
    this.#now = now;
    this.#webhookDeliveries = webhookDeliveries;
    this.#statements = prepareStatements(db);
  }

  claimBatchToValidate(claim: Claim, turn = ANY_TURN): Promise<ClaimedBatch | null> {
    const { findWaiting, claim: claimOne, findInput } = this.#statements;
    const nowMs = this.#now();
    return claimInTurn(turn, {
      find: (project) => findWaiting.get({ project, nowMs }) ?? null,
      claim: ({ sequence }) =>
        writeUnsynced(this.#db, () => {
          const row = claimOne.get({ ...claimValues(claim, nowMs), sequence });
          return row === undefined ? null : claimedBatch(row, findInput.get({ ...row, nowMs }));
        }),
    });
  }

  async failBatchIfLeased(
    lease: BatchLease,
    { faults, announcements }: BatchFailure,
  ): Promise<boolean> {
    const nowMs = this.#now();
    const { batchId } = lease;
    return write(this.#db, () => {
      const { changes } = this.#db
        .update(batches)
        .set({ status: "failed", faults, failedAtMs: nowMs, ...NO_LEASE })
        .where(and(isHeldBatch, isValidating))
        .prepare()
        .run({ ...lease });
      if (changes === 0) return false;
      this.#webhookDeliveries.insert(announcements, {
        batchId,
        status: "failed",
        createdAtMs: nowMs,
      });
      settleDeliveries(this.#db, {
        batchId,
        status: "failed",
        nowMs,
        outputFileId: null,
        errorFileId: null,
      });
      return true;
    });
  }

  async startBatchIfLeased(
    lease: BatchLease,
    plan: BatchPlan,
    quotas?: LineQuotas,
  ): Promise<boolean> {
    const nowMs = this.#now();
    await this.#removeDraft(lease);
    const pages = [...pagesOf(plan.chunks)];
    const last = pages.pop() ?? [];
    for (const page of pages) {
      if (!this.#insertDraft(lease, page)) return false;
      await nextTurn();
    }
    return write(this.#db, () => {
      const { changes } = this.#db
        .update(batches)
        .set({
          ...planColumns(plan),
          inProgressAtMs: nowMs,
          ...NO_LEASE,
        })
        .where(and(isHeldBatch, waitsForValidation))
        .prepare()
        .run({ ...lease });
      if (changes === 0) return false;
      if (boundsLines(quotas)) this.#assertRoom(lease, quotas);
      this.#insertChunks(lease, last);
      const { summary: input } = plan;
      if (input !== undefined) keepSummary(this.#db, lease.batchId, { input });
      return true;
    });
  }

  /** Counts the lines of the batch too, so it must have started within the same transaction. */
  #assertRoom({ batchId }: BatchLease, quotas: LineQuotas): void {
    const has = this.#db.get<{ lines: number; tokens: number }>(sql`
      select sum(${linesToSend}) as lines, sum(estimated_tokens) as tokens
      from batches indexed by batches_open_by_project
      where project = (select project from batches where id = ${batchId}) and ${isOpenBatch} and ${isListed}`);
    assertRoomForLines(has, quotas);
  }

  /** Removes the chunks that an unfinished validation left. */
  async #removeDraft(lease: BatchLease): Promise<void> {
    while (this.#statements.findDraft.get({ ...lease }) !== undefined) {
      writeUnsynced(this.#db, () => this.#statements.deleteDraft.run({ ...lease }));
      await nextTurn();
    }
  }

  /**
   * The page needs no sync. The start of the batch is committed later, so a power cut that takes the page takes the
   * start too.
   */
  #insertDraft(lease: BatchLease, page: readonly PlannedChunk[]): boolean {
    return writeUnsynced(this.#db, () => {
      if (this.#statements.markDraft.run({ ...lease }).changes === 0) return false;
      this.#insertChunks(lease, page);
      return true;
    });
  }

  #insertChunks({ batchId }: BatchLease, planned: readonly PlannedChunk[]): void {
    for (const chunk of planned) this.#statements.insertChunk.run({ ...chunk, batchId });
  }
}
