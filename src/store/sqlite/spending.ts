/** Reserves what the lines under way may use. Reservations need no sync: a power cut ends the lines, too. */
import type { BatchId } from "../../batch/batch.ts";
import { dayOf, monthOf } from "../../batch/model-usage.ts";
import { addSpending, type BoundReason, grantOf, type Spending } from "../../batch/spending.ts";
import type { ChunkLease } from "../leases.ts";
import {
  assertNotUsedUp,
  boundsOf,
  isGivenBack,
  type PricedSum,
  QUOTA_PAUSES_PAGE,
  type QuotaPause,
  quotaPausesOf,
  type Reservation,
  type ReservationResult,
  type ReservedRow,
  type SpendingQuotas,
  type SpendingStore,
} from "../spending.ts";
import {
  isPausedByQuota,
  isReservationInForce,
  isReserved,
  isUsageOf,
  mayExpire,
  maySend,
} from "./conditions.ts";
import { type Db, type Now, writeUnsynced } from "./database.ts";
import { and, asc, eq, type SQL, sql } from "./drizzle.ts";
import { isHeldChunk } from "./leases.ts";
import { batches, chunks } from "./schema.ts";
import { modelUsage, reservations, usageSums } from "./usage-schema.ts";

const sum = (column: typeof modelUsage.inputTokens | typeof usageSums.inputTokens) =>
  sql<number>`sum(${column})`;

const PAUSE_COLUMNS = {
  sequence: batches.sequence,
  batchId: batches.id,
  project: batches.project,
  pauseReason: batches.pauseReason,
  pausedAtMs: batches.pausedAtMs,
  pauseLimit: batches.pauseLimit,
};

export class SqliteSpending implements SpendingStore {
  readonly #db: Db;
  readonly #now: Now;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
  }

  async reserveIfLeased(
    lease: ChunkLease,
    { project, quotas, ...request }: Reservation,
  ): Promise<ReservationResult> {
    const nowMs = this.#now();
    return writeUnsynced(this.#db, () => {
      const held = findHeld(this.#db, lease);
      if (held === null) return { kind: "not_held" };
      const ofBatch = eq(modelUsage.batchId, lease.batchId);
      const bounds = boundsOf(lease, quotas, {
        ...held,
        ...usedBy(this.#db, project, quotas, nowMs),
        ofBatch: held.budget === null ? [] : sumsOf(this.#db, modelUsage, ofBatch),
        reserved: reservedBy(this.#db, { lease, project, nowMs }),
      });
      const grant = grantOf(bounds, request);
      if (grant.kind === "exhausted") pause(this.#db, lease.batchId, grant, nowMs);
      const { inFlight } = request;
      const kept = grant.kind === "granted" ? addSpending(inFlight, grant.granted) : inFlight;
      if (isGivenBack(request, kept)) remove(this.#db, lease);
      else record(this.#db, lease, { project, kept });
      return grant;
    });
  }

  async listQuotaPauses(after: number): Promise<QuotaPause[]> {
    const rows = this.#db
      .select(PAUSE_COLUMNS)
      .from(batches)
      .where(sql`${isPausedByQuota} and ${mayExpire} and sequence > ${after}`)
      .orderBy(asc(batches.sequence))
      .limit(QUOTA_PAUSES_PAGE)
      .all();
    return quotaPausesOf(rows);
  }
}

/** Throws when the project has used up what it may. */
export const assertMayCreate = (
  db: Db,
  project: string,
  quotas: SpendingQuotas,
  nowMs: number,
): void => assertNotUsedUp(quotas, usedBy(db, project, quotas, nowMs));

const findHeld = (db: Db, lease: ChunkLease) =>
  db
    .select({ budget: batches.budget })
    .from(chunks)
    .innerJoin(batches, and(eq(batches.id, chunks.batchId), maySend))
    .where(isHeldChunk)
    .prepare()
    .get({ ...lease }) ?? null;

function usedBy(db: Db, project: string, quotas: SpendingQuotas, nowMs: number) {
  const today = dayOf(nowMs);
  const isOfMonth = isUsageOf(project, monthOf(today));
  const { tokensPerDay, costPerMonth } = quotas;
  return {
    tokensToday: tokensPerDay === null ? 0 : tokensOf(db, project, today),
    ofMonth: costPerMonth === null ? [] : sumsOf(db, usageSums, isOfMonth),
  };
}

const tokensOf = (db: Db, project: string, day: string): number =>
  db
    .select({ tokens: sql<number>`coalesce(sum(input_tokens + output_tokens), 0)` })
    .from(usageSums)
    .where(and(eq(usageSums.project, project), eq(usageSums.day, day)))
    .get()?.tokens ?? 0;

const sumsOf = (
  db: Db,
  table: typeof modelUsage | typeof usageSums,
  isCounted: SQL | undefined,
): PricedSum[] =>
  db
    .select({
      price: table.price,
      requestCount: sum(table.requestCount),
      inputTokens: sum(table.inputTokens),
      cachedTokens: sum(table.cachedTokens),
      outputTokens: sum(table.outputTokens),
    })
    .from(table)
    .where(isCounted)
    .groupBy(table.price)
    .all();

interface Decision {
  readonly lease: ChunkLease;
  readonly project: string;
  readonly nowMs: number;
}

/**
 * Ends the leases of others that ran out first. Such a lease is still held, and its holder could count what its lines took
 * beside what others get of its reservation now.
 */
function reservedBy(db: Db, { lease, project, nowMs }: Decision): ReservedRow[] {
  const { batchId, chunkNumber } = lease;
  db.run(sql`
    update chunks set lease_owner = null, lease_expires_at_ms = null from reservations
    where ${isReserved} and chunks.lease_expires_at_ms <= ${nowMs} and reservations.project = ${project}
      and not (chunks.batch_id = ${batchId} and chunks.number = ${chunkNumber})`);
  const isOfProject = eq(reservations.project, project);
  db.delete(reservations)
    .where(and(isOfProject, sql`not ${isReservationInForce}`))
    .run();
  return db.select().from(reservations).where(isOfProject).all();
}

const remove = (db: Db, { batchId, chunkNumber }: ChunkLease): void => {
  db.delete(reservations)
    .where(and(eq(reservations.batchId, batchId), eq(reservations.chunkNumber, chunkNumber)))
    .run();
};

function record(
  db: Db,
  { batchId, chunkNumber, epoch }: ChunkLease,
  { project, kept }: { readonly project: string; readonly kept: Spending },
): void {
  const row = { epoch, project, tokens: kept.tokens, cost: kept.cost.toString() };
  db.insert(reservations)
    .values({ batchId, chunkNumber, ...row })
    .onConflictDoUpdate({ target: [reservations.batchId, reservations.chunkNumber], set: row })
    .run();
}

function pause(
  db: Db,
  batchId: BatchId,
  { reason, limit }: { readonly reason: BoundReason; readonly limit: string },
  nowMs: number,
): void {
  // A budget is the client's: nothing but the client ends the pause.
  const pauseLimit = reason === "budget" ? null : limit;
  db.update(batches)
    .set({ pausedAtMs: nowMs, pauseReason: reason, pauseLimit })
    .where(and(eq(batches.id, batchId), maySend))
    .run();
}
