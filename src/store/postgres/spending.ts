/**
 * Reserves what the lines under way may use. All decisions about one project wait for each other, so none of them
 * misses another one's reservation.
 */
import type { BatchId } from "../../batch/batch.ts";
import { dayOf, monthOf } from "../../batch/model-usage.ts";
import type { Decimal } from "../../batch/price.ts";
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
  batchOf,
  isPausedByQuota,
  isReservationInForce,
  isReserved,
  isUsageOf,
  mayExpire,
  maySend,
} from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, asc, eq, type SQL, sql } from "./drizzle.ts";
import { isHeldChunk } from "./leases.ts";
import { sendNudge } from "./nudges.ts";
import { lockSpending } from "./project-locks.ts";
import { batches, chunks } from "./schema.ts";
import { modelUsage, reservations, usageSums } from "./usage-schema.ts";

const sum = (column: typeof modelUsage.inputTokens | typeof usageSums.inputTokens) =>
  sql`sum(${column})`.mapWith(Number);

const PAUSE_COLUMNS = {
  sequence: batches.sequence,
  batchId: batches.id,
  project: batches.project,
  pauseReason: batches.pauseReason,
  pausedAtMs: batches.pausedAtMs,
  pauseLimit: batches.pauseLimit,
};

export class PostgresSpending implements SpendingStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  reserveIfLeased(
    lease: ChunkLease,
    { project, quotas, ...request }: Reservation,
  ): Promise<ReservationResult> {
    const now = this.#db.now();
    return this.#db.lockingTransaction({ kind: "spending", project }, async (db) => {
      await lockSpending(db, project);
      const held = await findHeld(db, lease);
      if (held === null) return { kind: "not_held" };
      // The reservations come first: a chunk that ends meanwhile counts twice then. In the other order it would not count.
      await takeLateLeases(db, { lease, project, now });
      const reserved = await reservedBy(db, project);
      const isOfBatch = eq(modelUsage.batchId, lease.batchId);
      const bounds = boundsOf(lease, quotas, {
        ...held,
        ...(await usedBy(db, project, quotas, now)),
        ofBatch: held.budget === null ? [] : await sumsOf(db, modelUsage, isOfBatch),
        reserved,
      });
      const grant = grantOf(bounds, request);
      // Another budget has come meanwhile, and perhaps a resume after it. The line asks again.
      if (
        grant.kind === "exhausted" &&
        !(await pause(db, lease.batchId, { ...grant, ...held, now }))
      )
        return { kind: "wait" };
      const { inFlight } = request;
      const kept = grant.kind === "granted" ? addSpending(inFlight, grant.granted) : inFlight;
      if (isGivenBack(request, kept)) await remove(db, lease);
      else await record(db, lease, { project, kept });
      return grant;
    });
  }

  async listQuotaPauses(after: number): Promise<QuotaPause[]> {
    const rows = await this.#db.read((db) =>
      db
        .select(PAUSE_COLUMNS)
        .from(batches)
        .where(sql`${isPausedByQuota} and ${mayExpire} and sequence > ${after}`)
        .orderBy(asc(batches.sequence))
        .limit(QUOTA_PAUSES_PAGE),
    );
    return quotaPausesOf(rows);
  }
}

/** Throws when the project has used up what it may. */
export async function assertMayCreate(
  db: Db,
  project: string,
  quotas: SpendingQuotas,
  now: SQL,
): Promise<void> {
  assertNotUsedUp(quotas, await usedBy(db, project, quotas, now));
}

async function findHeld(db: Db, lease: ChunkLease) {
  const [found] = await db
    .select({ budget: sql<Decimal | null>`batches.budget` })
    .from(chunks)
    .innerJoin(batchOf(sql`${chunks.batchId}`), maySend)
    .where(isHeldChunk(lease));
  return found ?? null;
}

async function usedBy(db: Db, project: string, quotas: SpendingQuotas, now: SQL) {
  const { rows } = await db.execute<{ now: string }>(sql`select ${now} as now`);
  const today = dayOf(Number(rows[0]?.now));
  const { tokensPerDay, costPerMonth } = quotas;
  const isOfMonth = isUsageOf(project, monthOf(today));
  return {
    tokensToday: tokensPerDay === null ? 0 : await tokensOf(db, project, today),
    ofMonth: costPerMonth === null ? [] : await sumsOf(db, usageSums, isOfMonth),
  };
}

async function tokensOf(db: Db, project: string, day: string): Promise<number> {
  const [found] = await db
    .select({ tokens: sql`coalesce(sum(input_tokens + output_tokens), 0)`.mapWith(Number) })
    .from(usageSums)
    .where(and(eq(usageSums.project, project), eq(usageSums.day, day)));
  return found?.tokens ?? 0;
}

const sumsOf = (
  db: Db,
  table: typeof modelUsage | typeof usageSums,
  isCounted: SQL | undefined,
): Promise<PricedSum[]> =>
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
    .groupBy(table.price);

/**
 * Ends the leases of other workers of the project that ran out. A worker that was away still holds such a lease, and could
 * count what its lines took beside what others get of its reservation now. One that commits at this moment keeps its lease.
 */
async function takeLateLeases(
  db: Db,
  { lease, project, now }: { readonly lease: ChunkLease; readonly project: string; now: SQL },
): Promise<void> {
  const { batchId, chunkNumber } = lease;
  await db.execute(sql`
    with late as (
      select chunks.batch_id, chunks.number from reservations
      join chunks on ${isReserved} and chunks.lease_expires_at_ms <= ${now}
      where reservations.project = ${project}
        and not (chunks.batch_id = ${batchId} and chunks.number = ${chunkNumber})
      for update of chunks skip locked)
    update chunks set lease_owner = null, lease_expires_at_ms = null from late
    where chunks.batch_id = late.batch_id and chunks.number = late.number`);
}

async function reservedBy(db: Db, project: string): Promise<ReservedRow[]> {
  const isOfProject = eq(reservations.project, project);
  await db.delete(reservations).where(and(isOfProject, sql`not ${isReservationInForce}`));
  return db.select().from(reservations).where(isOfProject);
}

const remove = (db: Db, { batchId, chunkNumber }: ChunkLease) =>
  db
    .delete(reservations)
    .where(and(eq(reservations.batchId, batchId), eq(reservations.chunkNumber, chunkNumber)));

async function record(
  db: Db,
  { batchId, chunkNumber, epoch }: ChunkLease,
  { project, kept }: { readonly project: string; readonly kept: Spending },
): Promise<void> {
  const row = { epoch, project, tokens: kept.tokens, cost: kept.cost.toString() };
  await db
    .insert(reservations)
    .values({ batchId, chunkNumber, ...row })
    .onConflictDoUpdate({ target: [reservations.batchId, reservations.chunkNumber], set: row });
}

interface Exhaustion {
  readonly reason: BoundReason;
  readonly limit: string;
  /** The budget that the decision was made with. */
  readonly budget: Decimal | null;
  readonly now: SQL;
}

/** Returns false for a batch that has another budget by now, or sends no lines any more. */
async function pause(
  db: Db,
  batchId: BatchId,
  { reason, limit, budget, now }: Exhaustion,
): Promise<boolean> {
  // A budget is the client's: nothing but the client ends the pause.
  const pauseLimit = reason === "budget" ? null : limit;
  const { rowCount } = await db
    .update(batches)
    .set({ pausedAtMs: now, pauseReason: reason, pauseLimit })
    .where(and(eq(batches.id, batchId), maySend, sql`budget is not distinct from ${budget}::text`));
  if (rowCount === 0) return false;
  await sendNudge(db, "batch_stopping");
  return true;
}
