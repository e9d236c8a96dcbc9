/** Moves batches from `validating` to `in_progress` or `failed`. */

import type { BatchId } from "../../batch/batch.ts";
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
import type { Database, Db } from "./database.ts";
import { settleDeliveries } from "./deliveries.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
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
import { sendNudge } from "./nudges.ts";
import { lockLists } from "./project-locks.ts";
import { keepSummary } from "./runs.ts";
import { batches, chunks } from "./schema.ts";
import { isInputOf } from "./scope.ts";
import { insertWebhookDeliveries } from "./webhook-deliveries.ts";

const isWaiting = (now: SQL): SQL => sql`${waitsForValidation} and ${isFreeBatch(now)}`;

export class PostgresValidation implements ValidationStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  claimBatchToValidate(claim: Claim, turn = ANY_TURN): Promise<ClaimedBatch | null> {
    const bid = this.#db.timed(claim);
    const waiting = isWaiting(bid.now);
    return claimInTurn(turn, {
      find: (project) => this.#db.read((db) => findBehind(db, project, waiting)),
      claim: ({ project }) => this.#claimOf(project, waiting, bid),
    });
  }

  #claimOf(project: string, waiting: SQL, bid: Bid): Promise<ClaimedBatch | null> {
    const { now } = bid;
    return this.#db.transaction(async (db) => {
      const [row] = await db
        .update(batches)
        .set(batchClaimedBy(bid))
        .where(sql`sequence = ${firstOf(project, waiting)}`)
        .returning();
      if (row === undefined) return null;
      // The lock makes a delete wait until it sees that the batch reads the file.
      const [input] = await db
        .select()
        .from(files)
        .where(
          and(isInputOf(row), isListed, sql`(expires_at_ms is null or expires_at_ms > ${now})`),
        )
        .for("share");
      return claimedBatch(row, input);
    });
  }

  failBatchIfLeased(lease: BatchLease, { faults, announcements }: BatchFailure): Promise<boolean> {
    const now = this.#db.now();
    const { batchId } = lease;
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(batches)
        .set({ status: "failed", faults, failedAtMs: now, ...NO_LEASE })
        .where(and(isHeldBatch(lease), isValidating));
      if (rowCount === 0) return false;
      await insertWebhookDeliveries(db, announcements, {
        batchId,
        status: "failed",
        createdAtMs: now,
      });
      await settleDeliveries(db, {
        batchId,
        status: "failed",
        now,
        outputFileId: null,
        errorFileId: null,
      });
      return true;
    });
  }

  startBatchIfLeased(lease: BatchLease, plan: BatchPlan, quotas?: LineQuotas): Promise<boolean> {
    const now = this.#db.now();
    const { batchId } = lease;
    return this.#db.transaction(async (db) => {
      const [started] = await db
        .update(batches)
        .set({
          ...planColumns(plan),
          inProgressAtMs: now,
          ...RELEASED,
        })
        .where(and(isHeldBatch(lease), waitsForValidation))
        .returning({ project: batches.project });
      if (started === undefined) return false;
      if (boundsLines(quotas)) await assertRoom(db, started.project, quotas);
      await sendNudge(db, "batch_started");
      for (const page of pagesOf(plan.chunks)) {
        await insertChunks(db, batchId, page);
      }
      if (plan.summary !== undefined) await keepSummary(db, batchId, { input: plan.summary });
      return true;
    });
  }
}

/**
 * Counts the lines of the batch too, so it must have started within the same transaction. The lock keeps other batches of the
 * project from starting in between.
 */
async function assertRoom(db: Db, project: string, quotas: LineQuotas): Promise<void> {
  await lockLists(db, project);
  const [has] = await db
    .select({
      lines: sql`sum(${linesToSend})`.mapWith(Number),
      tokens: sql`sum(estimated_tokens)`.mapWith(Number),
    })
    .from(batches)
    .where(and(eq(batches.project, project), isOpenBatch, isListed));
  if (has !== undefined) assertRoomForLines(has, quotas);
}

/** Passes arrays, because a statement with thousands of parameters takes long to make and to parse. */
async function insertChunks(
  db: Db,
  batchId: BatchId,
  planned: readonly PlannedChunk[],
): Promise<void> {
  const models = planned.map(({ model }) => chunks.model.mapToDriverValue(model));
  await db.execute(sql`
    insert into chunks (batch_id, number, model, line_count, extents)
    select ${batchId}, number, model, line_count, extents::json from unnest(
      ${arrayOf(
        planned.map(({ number }) => number),
        "bigint",
      )},
      ${arrayOf(models, "text")},
      ${arrayOf(
        planned.map(({ lineCount }) => lineCount),
        "bigint",
      )},
      ${arrayOf(
        planned.map(({ extents }) => JSON.stringify(extents)),
        "text",
      )}
    ) as planned(number, model, line_count, extents)`);
}
