/**
 * Leases on batches (to validate, to finalize) and on chunks. They exist so that one worker at a time writes the work
 * it claimed.
 *
 * A claim sets owner and expiry and moves the epoch up. A lease is held while its epoch is current and the row still
 * has an owner. Giving it back, closing the chunk and ending the batch take the owner away, and another claim moves
 * the epoch on. A lease that ran out stays held until another worker claims, so a holder that was only slow loses
 * nothing.
 *
 * An epoch is a count of claims with a random number below it. A restored backup, and a power cut, take claims back, and so
 * the count. Without the random number the names of segments that are left from then would come again, and a sweep that is
 * removing those would remove new ones.
 *
 * Webhook deliveries are claimed with an owner and an expiry too, but without an epoch: at worst an overtaken holder
 * sends an event twice. The claim of an idempotency key needs no epoch, because each request claims under a name of its own.
 */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId, StopReason } from "../../batch/batch.ts";
import type { Decimal } from "../../batch/price.ts";
import type { Claim } from "../claim.ts";
import { type BatchLease, type ChunkLease, EPOCH_RANDOM_BITS, type Renewal } from "../leases.ts";
import { interactiveSlots } from "./access-schema.ts";
import { isKeyInProgress, isOpenBatch, isOpenChunk } from "./conditions.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { and, eq, gt, isNotNull, placeholder, sql } from "./drizzle.ts";
import { blobIntents, idempotencyKeys } from "./file-schema.ts";
import { batches, chunks, webhookDeliveries } from "./schema.ts";
import { reservations } from "./usage-schema.ts";

export const NO_LEASE = { leaseOwner: null, leaseExpiresAtMs: null } as const;

/** Versions before 0.2 count by ones. All of their claims together count as the first. */
const NEXT_EPOCH = sql.raw(
  `((max(lease_epoch >> ${EPOCH_RANDOM_BITS}, min(lease_epoch, 1)) + 1) << ${EPOCH_RANDOM_BITS}) + (random() & ${2 ** EPOCH_RANDOM_BITS - 1})`,
);

/** The columns that a claim sets, for statements prepared with `owner` and `leaseExpiresAtMs`. */
export const CLAIMED = {
  leaseOwner: sql`${placeholder("owner")}`,
  leaseExpiresAtMs: sql`${placeholder("leaseExpiresAtMs")}`,
  leaseEpoch: NEXT_EPOCH,
};

/** The values for a statement that claims: {@link CLAIMED} and {@link isFree}. */
export const claimValues = ({ owner, ttlMs }: Claim, nowMs: number) => ({
  owner,
  nowMs,
  leaseExpiresAtMs: nowMs + ttlMs,
});

/** The columns of a batch that a claim may take. */
export const PLACE = { project: sql<string>`project`, sequence: sql<number>`sequence` };

/** The condition that any worker may claim the row, for statements prepared with `nowMs`. */
export const isFree = sql`(lease_expires_at_ms is null or lease_expires_at_ms <= ${placeholder("nowMs")})`;

/** The condition serves statements that run with a {@link BatchLease}. */
export const isHeldBatch = and(
  eq(batches.id, placeholder("batchId")),
  eq(batches.leaseEpoch, placeholder("epoch")),
  isNotNull(batches.leaseOwner),
);

/** The condition serves statements that run with a {@link ChunkLease}. */
export const isHeldChunk = and(
  eq(chunks.batchId, placeholder("batchId")),
  eq(chunks.number, placeholder("chunkNumber")),
  eq(chunks.leaseEpoch, placeholder("epoch")),
  isNotNull(chunks.leaseOwner),
);

/** What the holders of leases have to know about their batches. */
interface Stops {
  readonly stopping: Map<BatchId, StopReason>;
  readonly paused: Set<BatchId>;
  readonly budgets: Map<BatchId, Decimal>;
}

/** One commit renews so many leases: some 10 ms. */
const PAGE_LEASES = 500;

const prepareStatements = (db: Db) => ({
  releaseBatch: db.update(batches).set(NO_LEASE).where(isHeldBatch).prepare(),
  releaseChunk: db.update(chunks).set(NO_LEASE).where(isHeldChunk).prepare(),
  releaseChunkAs: db
    .update(chunks)
    .set({ ...NO_LEASE, model: sql`${placeholder("model")}` })
    .where(isHeldChunk)
    .prepare(),
  renewBatch: db
    .update(batches)
    .set({ leaseExpiresAtMs: CLAIMED.leaseExpiresAtMs })
    .where(isHeldBatch)
    .prepare(),
  renewChunk: db
    .update(chunks)
    .set({ leaseExpiresAtMs: CLAIMED.leaseExpiresAtMs })
    .where(isHeldChunk)
    .prepare(),
  countBatchFailure: db
    .update(batches)
    .set({ failureCount: sql`failure_count + 1` })
    .where(isHeldBatch)
    .prepare(),
  findStop: db
    .select({
      reason: batches.stopReason,
      pausedAtMs: batches.pausedAtMs,
      budget: batches.budget,
    })
    .from(batches)
    .where(eq(batches.id, placeholder("batchId")))
    .prepare(),
});

export class SqliteLeases {
  readonly #db: Db;
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
    this.#statements = prepareStatements(db);
  }

  async releaseBatchIfLeased(lease: BatchLease): Promise<boolean> {
    return this.#release(() => this.#statements.releaseBatch.run({ ...lease }));
  }

  async releaseChunkIfLeased(lease: ChunkLease, model?: string): Promise<boolean> {
    const { releaseChunk, releaseChunkAs } = this.#statements;
    return this.#release(() =>
      model === undefined
        ? releaseChunk.run({ ...lease })
        : releaseChunkAs.run({ ...lease, model }),
    );
  }

  /** A server may give hundreds back in one turn of the event loop, such as at its end, or when their project is paused. */
  #release(change: () => { readonly changes: number }): boolean {
    return writeUnsynced(this.#db, () => change().changes === 1);
  }

  async countBatchFailureIfLeased(lease: BatchLease): Promise<boolean> {
    return this.#statements.countBatchFailure.run({ ...lease }).changes === 1;
  }

  async renewLeases(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Promise<Renewal> {
    const { renewBatch, renewChunk } = this.#statements;
    const { leaseExpiresAtMs } = claimValues(claim, this.#now());
    const found: Stops = { stopping: new Map(), paused: new Set(), budgets: new Map() };
    const lostBatches = await this.#renewEach(held.batches, found, (lease) =>
      renewBatch.run({ ...lease, leaseExpiresAtMs }),
    );
    const lostChunks = await this.#renewEach(held.chunks, found, (lease) =>
      renewChunk.run({ ...lease, leaseExpiresAtMs }),
    );
    const stops = [...found.stopping].map(([batchId, reason]) => ({ batchId, reason }));
    const budgets = [...found.budgets].map(([batchId, budget]) => ({ batchId, budget }));
    return { lostBatches, lostChunks, stopping: stops, paused: [...found.paused], budgets };
  }

  /**
   * Renews the leases page by page, as there may be thousands. Returns the lost ones; `found` gets those batches of
   * the others that are to stop or are paused.
   */
  async #renewEach<L extends { readonly batchId: BatchId }>(
    leases: readonly L[],
    found: Stops,
    renewOne: (lease: L) => { readonly changes: number },
  ): Promise<L[]> {
    const lost: L[] = [];
    for (let from = 0; from < leases.length; from += PAGE_LEASES) {
      if (from > 0) await nextTurn();
      writeUnsynced(this.#db, () => {
        for (const lease of leases.slice(from, from + PAGE_LEASES)) {
          const { batchId } = lease;
          if (renewOne(lease).changes === 0) lost.push(lease);
          else {
            const {
              reason = null,
              pausedAtMs = null,
              budget = null,
            } = this.#statements.findStop.get({ batchId }) ?? {};
            if (budget !== null) found.budgets.set(batchId, budget);
            if (reason !== null) found.stopping.set(batchId, reason);
            else if (pausedAtMs !== null) found.paused.add(batchId);
          }
        }
      });
    }
    return lost;
  }
}

/** No event and no delivery waits longer for its next attempt. One that seems to was made before the clock was set back. */
const LONGEST_WAIT_MS = 60 * 60 * 1000;

/** Takes every lease back when the one owner of the database starts: all former holders are dead. */
export function takeAllBack(db: Db, nowMs: number): void {
  write(db, () => {
    for (const table of [webhookDeliveries, batchDeliveries]) {
      db.update(table)
        .set({ nextAttemptAtMs: nowMs })
        .where(gt(table.nextAttemptAtMs, nowMs + LONGEST_WAIT_MS))
        .run();
    }
    db.update(batches)
      .set(NO_LEASE)
      .where(and(isOpenBatch, isNotNull(batches.leaseOwner)))
      .run();
    db.update(chunks)
      .set(NO_LEASE)
      .where(and(isOpenChunk, isNotNull(chunks.leaseOwner)))
      .run();
    db.update(webhookDeliveries).set(NO_LEASE).where(isNotNull(webhookDeliveries.leaseOwner)).run();
    db.update(batchDeliveries).set(NO_LEASE).where(isNotNull(batchDeliveries.leaseOwner)).run();
    // A key without an answer belongs to a request that came to nothing.
    db.delete(idempotencyKeys).where(isKeyInProgress).run();
    db.delete(interactiveSlots).run();
    db.delete(reservations).run();
    // No process is left that could write the row of such a blob.
    db.delete(blobIntents).run();
  });
}
