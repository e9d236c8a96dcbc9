/** From `validating` to `in_progress` or `failed`. */

import type { Claim } from "../claim.ts";
import type { BatchFailure, BatchLease, BatchPlan, ClaimedBatch } from "../store.ts";
import { isListedFile, waitsForValidation } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import type { SqliteDeliveries } from "./deliveries.ts";
import { and, eq, placeholder, type SQL, sql } from "./drizzle.ts";
import { CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE } from "./leases.ts";
import { batchFromRow, fileFromRow } from "./rows.ts";
import { batches, chunks, files } from "./schema.ts";
import { isInputOfBatch } from "./scope.ts";

/** The first waiting batch of the first project that `isEligible`. */
const firstWaiting = (isEligible: SQL): SQL => sql`(
  select sequence from batches indexed by batches_to_validate
  where ${waitsForValidation} and ${isFree} and ${isEligible}
  order by project, sequence limit 1)`;

const prepareStatements = (db: Db) => ({
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(
      eq(
        batches.sequence,
        sql`coalesce(${firstWaiting(sql`project > ${placeholder("formerProject")}`)}, ${firstWaiting(sql`true`)})`,
      ),
    )
    .returning()
    .prepare(),
  findInput: db
    .select()
    .from(files)
    .where(
      and(
        isInputOfBatch,
        isListedFile,
        sql`(expires_at_ms is null or expires_at_ms > ${placeholder("nowMs")})`,
      ),
    )
    .prepare(),
  insertChunk: db
    .insert(chunks)
    .values({
      batchId: placeholder("batchId"),
      number: placeholder("number"),
      route: placeholder("route"),
      lineCount: placeholder("lineCount"),
      extents: placeholder("extents"),
    })
    .prepare(),
});

export class SqliteValidation {
  readonly #db: Db;
  readonly #deliveries: SqliteDeliveries;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, deliveries: SqliteDeliveries) {
    this.#db = db;
    this.#deliveries = deliveries;
    this.#statements = prepareStatements(db);
  }

  claim(claim: Claim, formerProject = ""): ClaimedBatch | null {
    return write(this.#db, () => {
      const row = this.#statements.claim.get({ ...claimValues(claim), formerProject });
      if (row === undefined) return null;
      const input = this.#statements.findInput.get({ ...row, nowMs: claim.nowMs });
      return {
        lease: { batchId: row.id, epoch: row.leaseEpoch },
        batch: batchFromRow(row),
        input: input === undefined ? null : fileFromRow(input),
        failureCount: row.failureCount,
      };
    });
  }

  failIfLeased(lease: BatchLease, { faults, announcements }: BatchFailure, nowMs: number): boolean {
    const { batchId } = lease;
    return write(this.#db, () => {
      const { changes } = this.#db
        .update(batches)
        .set({ status: "failed", faults, failedAtMs: nowMs, ...NO_LEASE })
        .where(and(isHeldBatch, waitsForValidation))
        .prepare()
        .run({ ...lease });
      if (changes === 0) return false;
      this.#deliveries.insert(announcements, { batchId, status: "failed", createdAtMs: nowMs });
      return true;
    });
  }

  startIfLeased(lease: BatchLease, plan: BatchPlan, nowMs: number): boolean {
    return write(this.#db, () => {
      const started = this.#db
        .update(batches)
        .set({
          status: "in_progress",
          model: plan.model,
          defaultModel: plan.defaultModel,
          totalCount: plan.total,
          inProgressAtMs: nowMs,
          hasChunks: true,
          failureCount: 0,
          ...NO_LEASE,
        })
        .where(and(isHeldBatch, waitsForValidation))
        .returning({ batchId: batches.id })
        .prepare()
        .get({ ...lease });
      if (started === undefined) return false;
      for (const chunk of plan.chunks) this.#statements.insertChunk.run({ ...chunk, ...started });
      return true;
    });
  }
}
