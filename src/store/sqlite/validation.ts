/** From `validating` to `in_progress` or `failed`. */
import { and, eq, placeholder, sql } from "drizzle-orm";
import type { Fault } from "../../batch/batch.ts";
import type { BatchLease, BatchPlan, Claim, ClaimedBatch } from "../store.ts";
import { isListedFile, waitsForValidation } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE } from "./leases.ts";
import { batchFromRow, fileFromRow } from "./rows.ts";
import { batches, chunks, files } from "./schema.ts";

const prepareStatements = (db: Db) => ({
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(
      eq(
        batches.sequence,
        sql`(select sequence from batches where ${waitsForValidation} and ${isFree} order by sequence limit 1)`,
      ),
    )
    .returning()
    .prepare(),
  findInput: db
    .select()
    .from(files)
    .where(and(eq(files.id, placeholder("id")), isListedFile))
    .prepare(),
  insertChunk: db
    .insert(chunks)
    .values({
      batchId: placeholder("batchId"),
      number: placeholder("number"),
      route: placeholder("route"),
      lineCount: placeholder("lineCount"),
      extents: placeholder("extents"),
      deadlineAtMs: placeholder("deadlineAtMs"),
    })
    .prepare(),
});

export class SqliteValidation {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  claim(claim: Claim): ClaimedBatch | null {
    return write(this.#db, () => {
      const row = this.#statements.claim.get(claimValues(claim));
      if (row === undefined) return null;
      const input = this.#statements.findInput.get({ id: row.inputFileId });
      return {
        lease: { batchId: row.id, epoch: row.leaseEpoch },
        batch: batchFromRow(row),
        input: input === undefined ? null : fileFromRow(input),
      };
    });
  }

  failIfLeased(lease: BatchLease, faults: readonly Fault[], nowMs: number): boolean {
    const { changes } = this.#db
      .update(batches)
      .set({ status: "failed", faults, failedAtMs: nowMs, ...NO_LEASE })
      .where(and(isHeldBatch, waitsForValidation))
      .prepare()
      .run({ ...lease });
    return changes === 1;
  }

  startIfLeased(lease: BatchLease, plan: BatchPlan, nowMs: number): boolean {
    return write(this.#db, () => {
      const started = this.#db
        .update(batches)
        .set({
          status: "in_progress",
          model: plan.model,
          totalCount: plan.total,
          inProgressAtMs: nowMs,
          hasChunks: true,
          ...NO_LEASE,
        })
        .where(and(isHeldBatch, waitsForValidation))
        .returning({ batchId: batches.id, deadlineAtMs: batches.expiresAtMs })
        .prepare()
        .get({ ...lease });
      if (started === undefined) return false;
      for (const chunk of plan.chunks) this.#statements.insertChunk.run({ ...chunk, ...started });
      return true;
    });
  }
}
