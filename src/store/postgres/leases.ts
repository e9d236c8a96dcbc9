/**
 * Leases on batches (to validate, to finalize) and on chunks. Webhook deliveries are claimed with an owner and an expiry
 * too, but without an epoch: at worst an event is sent twice. The claim of an idempotency key needs none, because each request
 * claims under a name of its own.
 *
 * A claim sets owner and expiry and moves the epoch up. A lease is held while its epoch is the current one and the row
 * still has an owner. A release, the end of the chunk and the end of the batch remove the owner, and another claim
 * raises the epoch. A lease that ran out stays held until another worker claims, so a slow holder loses nothing.
 *
 * A start takes no leases back as it does on SQLite, because other replicas may hold them.
 *
 * An epoch is a count of claims with a random number below it. A failover to a standby that was behind takes the last commits
 * back, and so the count. Without the random number, the next holder would have the epoch of the former one, which may still
 * be at work: each would write over the segments of the other.
 */

import type { BatchId } from "../../batch/batch.ts";
import type { Claim } from "../claim.ts";
import { type BatchLease, type ChunkLease, EPOCH_RANDOM_BITS, type Renewal } from "../leases.ts";
import { isSelected } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, inArray, isNotNull, or, type SQL, sql } from "./drizzle.ts";
import { batches, chunks } from "./schema.ts";

export const NO_LEASE = { leaseOwner: null, leaseExpiresAtMs: null } as const;

/** The owner of a lease that no process holds. */
const NEWER_VERSION = "newer version";
/** A moment that versions before this one wait for in vain. Leases that are hidden from them end so much later. */
const NEVER_MS = 2 ** 52;

/**
 * Stands in the place of "no lease" on a batch that versions without derived inputs and duplicates would end wrongly. They
 * see a holder and pass over the batch. For this version it is free.
 */
export const HIDDEN_FROM_OLDER = {
  leaseOwner: NEWER_VERSION,
  leaseExpiresAtMs: NEVER_MS,
} as const;

/** An older version would fail the batch for its missing input, or send its duplicates and write no rows for them. */
const BEYOND_OLDER = "(is_input_pending or is_deduplicated)";

/** What a batch has that was released. */
export const RELEASED = {
  leaseOwner: sql.raw(`case when ${BEYOND_OLDER} then '${NEWER_VERSION}' end`),
  leaseExpiresAtMs: sql.raw(`case when ${BEYOND_OLDER} then ${NEVER_MS} end`),
};

/** Holds for a batch with a lease of a process. */
export const isHeld = sql.raw(`lease_owner <> '${NEWER_VERSION}'`);

/** A claim, and the present time by the clock of the database. */
export interface Bid extends Claim {
  readonly now: SQL;
}

/** Returns the moment `ms` later. */
export const later = (now: SQL, ms: number): SQL => sql`${now} + ${ms}::bigint`;

const expiry = ({ now, ttlMs }: Bid): SQL => later(now, ttlMs);

/** The owner and the expiry that a claim sets. */
export const heldBy = (claim: Bid) => ({
  leaseOwner: claim.owner,
  leaseExpiresAtMs: expiry(claim),
});

const RANDOM_RANGE = 2 ** EPOCH_RANDOM_BITS;

/** Versions before 0.2 count by ones. All of their claims together count as the first. */
const NEXT_EPOCH = sql.raw(
  `((greatest(lease_epoch >> ${EPOCH_RANDOM_BITS}, least(lease_epoch, 1)) + 1) << ${EPOCH_RANDOM_BITS}) + floor(random() * ${RANDOM_RANGE})::bigint`,
);

/** Whether a claim with this epoch was the first one. */
export const isFirstClaim = (epoch: number): boolean => epoch < 2 * RANDOM_RANGE;

export const claimedBy = (claim: Bid) => ({ ...heldBy(claim), leaseEpoch: NEXT_EPOCH });

/** The claim of a batch. Its expiry is hidden, too: a slow holder must not lose the batch to an older version. */
export const batchClaimedBy = (claim: Bid) => ({
  ...claimedBy(claim),
  leaseExpiresAtMs: batchExpiry(claim),
});

/**
 * Finds the first project behind another one with a batch to claim. It is one statement, because every replica asks again
 * and again, and mostly there is nothing.
 */
export async function findBehind(
  db: Db,
  project: string,
  isWanted: SQL,
): Promise<{ readonly project: string } | null> {
  const { rows } = await db.execute<{ project: string }>(sql`
    select project from batches as candidates where ${isWanted} and project > ${project}
    order by project, sequence limit 1`);
  return rows[0] ?? null;
}

/** The first batch of a project that is wanted and that no other claim is about to take. */
export const firstOf = (project: string, isWanted: SQL): SQL => sql`(
  select sequence from batches as candidates where ${isWanted} and project = ${project}
  order by project, sequence limit 1 for update skip locked)`;

const batchExpiry = (claim: Bid): SQL =>
  sql`${expiry(claim)} + ${sql.raw(`case when ${BEYOND_OLDER} then ${NEVER_MS} else 0 end`)}`;

/** Holds for a row that any worker may claim. */
export const isFree = (now: SQL): SQL =>
  sql`(lease_expires_at_ms is null or lease_expires_at_ms <= ${now})`;

/** Holds for a batch that any worker of this version may claim. */
export const isFreeBatch = (now: SQL): SQL =>
  sql`(${isFree(now)} or lease_expires_at_ms between ${sql.raw(String(NEVER_MS))} and ${sql.raw(String(NEVER_MS))} + ${now})`;

export const isHeldBatch = ({ batchId, epoch }: BatchLease) =>
  and(eq(batches.id, batchId), eq(batches.leaseEpoch, epoch), isHeld);

export const isHeldChunk = ({ batchId, chunkNumber, epoch }: ChunkLease) =>
  and(
    eq(chunks.batchId, batchId),
    eq(chunks.number, chunkNumber),
    eq(chunks.leaseEpoch, epoch),
    isNotNull(chunks.leaseOwner),
  );

/** Makes an array one parameter, because a statement may have only 65,535 of them. */
export const arrayOf = (values: readonly unknown[] | null, type: "text" | "bigint"): SQL =>
  sql`${sql.param(values)}::${sql.raw(type)}[]`;

export class PostgresLeases {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async releaseBatchIfLeased(lease: BatchLease): Promise<boolean> {
    return (
      (await this.#db.change((db) => db.update(batches).set(RELEASED).where(isHeldBatch(lease))))
        .rowCount === 1
    );
  }

  async releaseChunkIfLeased(lease: ChunkLease, model?: string): Promise<boolean> {
    const change = model === undefined ? NO_LEASE : { ...NO_LEASE, model };
    return (
      (await this.#db.change((db) => db.update(chunks).set(change).where(isHeldChunk(lease))))
        .rowCount === 1
    );
  }

  async countBatchFailureIfLeased(lease: BatchLease): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db.update(batches).set({ failureCount: sql`failure_count + 1` }).where(isHeldBatch(lease)),
    );
    return rowCount === 1;
  }

  renewLeases(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Promise<Renewal> {
    const bid = this.#db.timed(claim);
    return this.#db.transaction(async (db) => {
      const renewedBatches = await renewBatches(db, held.batches, bid);
      const renewedChunks = await renewChunks(db, held.chunks, bid);
      const isKept = (lease: BatchLease | ChunkLease) =>
        "chunkNumber" in lease
          ? renewedChunks.has(chunkKey(lease))
          : renewedBatches.has(batchKey(lease));
      const kept = [...held.batches, ...held.chunks].filter(isKept);
      const ids = [...new Set(kept.map(({ batchId }) => batchId))];
      return {
        lostBatches: held.batches.filter((lease) => !isKept(lease)),
        lostChunks: held.chunks.filter((lease) => !isKept(lease)),
        ...(await findStops(db, ids)),
      };
    });
  }
}

const batchKey = ({ batchId, epoch }: BatchLease) => `${batchId} ${epoch}`;
const chunkKey = ({ batchId, chunkNumber, epoch }: ChunkLease) =>
  `${batchId} ${chunkNumber} ${epoch}`;

/** Like {@link renewChunks}, it locks the rows in one order: renewals of a process overlap when one of them is slow. */
async function renewBatches(
  db: Db,
  leases: readonly BatchLease[],
  claim: Bid,
): Promise<Set<string>> {
  if (leases.length === 0) return new Set();
  const ids = leases.map(({ batchId }) => batchId);
  const epochs = leases.map(({ epoch }) => epoch);
  const renewed = await db
    .update(batches)
    .set({ leaseExpiresAtMs: batchExpiry(claim) })
    .where(
      isSelected(sql`
        select sequence from batches
          join unnest(${arrayOf(ids, "text")}, ${arrayOf(epochs, "bigint")}) as held(id, epoch)
            on batches.id = held.id and lease_epoch = held.epoch and ${isHeld}
        order by sequence for no key update of batches`),
    )
    .returning({ batchId: batches.id, epoch: batches.leaseEpoch });
  return new Set(renewed.map(batchKey));
}

async function renewChunks(
  db: Db,
  leases: readonly ChunkLease[],
  claim: Bid,
): Promise<Set<string>> {
  if (leases.length === 0) return new Set();
  const ids = leases.map(({ batchId }) => batchId);
  const numbers = leases.map(({ chunkNumber }) => chunkNumber);
  const epochs = leases.map(({ epoch }) => epoch);
  const renewed = await db
    .update(chunks)
    .set({ leaseExpiresAtMs: expiry(claim) })
    .where(
      isSelected(sql`
        select sequence from chunks
          join unnest(
            ${arrayOf(ids, "text")}, ${arrayOf(numbers, "bigint")}, ${arrayOf(epochs, "bigint")}
          ) as held(batch_id, number, epoch)
            on chunks.batch_id = held.batch_id and chunks.number = held.number
              and lease_epoch = held.epoch and lease_owner is not null
        order by sequence for no key update of chunks`),
    )
    .returning({ batchId: chunks.batchId, chunkNumber: chunks.number, epoch: chunks.leaseEpoch });
  return new Set(renewed.map(chunkKey));
}

/** Finds the batches that are to stop, and those that are paused. */
async function findStops(
  db: Db,
  ids: readonly BatchId[],
): Promise<Pick<Renewal, "stopping" | "paused" | "budgets">> {
  if (ids.length === 0) return { stopping: [], paused: [], budgets: [] };
  const found = await db
    .select({
      id: batches.id,
      reason: batches.stopReason,
      pausedAtMs: batches.pausedAtMs,
      budget: batches.budget,
    })
    .from(batches)
    .where(
      and(
        inArray(batches.id, [...ids]),
        or(isNotNull(batches.stopReason), isNotNull(batches.pausedAtMs), isNotNull(batches.budget)),
      ),
    );
  return {
    stopping: found.flatMap(({ id: batchId, reason }) =>
      reason === null ? [] : [{ batchId, reason }],
    ),
    paused: found
      .filter(({ reason, pausedAtMs }) => reason === null && pausedAtMs !== null)
      .map(({ id }) => id),
    budgets: found.flatMap(({ id: batchId, budget }) =>
      budget === null ? [] : [{ batchId, budget }],
    ),
  };
}
