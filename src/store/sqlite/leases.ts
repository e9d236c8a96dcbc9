/**
 * Leases on batches (to validate, to finalize) and on chunks. Deliveries are claimed with an owner and an expiry too,
 * but without an epoch: at worst a holder that was overtaken has an event told twice. The claim of an idempotency key
 * needs none, because each request claims under a name of its own.
 *
 * A claim sets owner and expiry and counts the epoch up. A lease is held while its epoch is the
 * current one and the row still has an owner: giving it back, closing the chunk and ending the batch
 * take the owner away, and another claim moves the epoch on. A lease that ran out stays held until
 * somebody else claims, so a holder that was only slow loses nothing.
 */

import type { BatchId } from "../../batch/batch.ts";
import type { Claim } from "../claim.ts";
import type { BatchLease, ChunkLease, Renewal } from "../store.ts";
import { isKeyInProgress, isOpenBatch, isOpenChunk } from "./conditions.ts";
import { type Db, write, writeUnsynced } from "./database.ts";
import { and, eq, isNotNull, placeholder, sql } from "./drizzle.ts";
import { batches, blobIntents, chunks, deliveries, idempotencyKeys } from "./schema.ts";

export const NO_LEASE = { leaseOwner: null, leaseExpiresAtMs: null } as const;

/** What a claim sets, for statements prepared with `owner` and `leaseExpiresAtMs`. */
export const CLAIMED = {
  leaseOwner: sql`${placeholder("owner")}`,
  leaseExpiresAtMs: sql`${placeholder("leaseExpiresAtMs")}`,
  leaseEpoch: sql`lease_epoch + 1`,
};

export const claimValues = ({ owner, nowMs, ttlMs }: Claim) => ({
  owner,
  nowMs,
  leaseExpiresAtMs: nowMs + ttlMs,
});

/** Anyone may claim the row, for statements prepared with `nowMs`. */
export const isFree = sql`(lease_expires_at_ms is null or lease_expires_at_ms <= ${placeholder("nowMs")})`;

/** For statements that run with a {@link BatchLease}. */
export const isHeldBatch = and(
  eq(batches.id, placeholder("batchId")),
  eq(batches.leaseEpoch, placeholder("epoch")),
  isNotNull(batches.leaseOwner),
);

/** For statements that run with a {@link ChunkLease}. */
export const isHeldChunk = and(
  eq(chunks.batchId, placeholder("batchId")),
  eq(chunks.number, placeholder("chunkNumber")),
  eq(chunks.leaseEpoch, placeholder("epoch")),
  isNotNull(chunks.leaseOwner),
);

const prepareStatements = (db: Db) => ({
  releaseBatch: db.update(batches).set(NO_LEASE).where(isHeldBatch).prepare(),
  releaseChunk: db.update(chunks).set(NO_LEASE).where(isHeldChunk).prepare(),
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
  findStopReason: db
    .select({ reason: batches.stopReason })
    .from(batches)
    .where(eq(batches.id, placeholder("batchId")))
    .prepare(),
});

export class SqliteLeases {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  releaseBatchIfLeased(lease: BatchLease): boolean {
    return this.#statements.releaseBatch.run({ ...lease }).changes === 1;
  }

  releaseChunkIfLeased(lease: ChunkLease): boolean {
    return this.#statements.releaseChunk.run({ ...lease }).changes === 1;
  }

  countBatchFailureIfLeased(lease: BatchLease): boolean {
    return this.#statements.countBatchFailure.run({ ...lease }).changes === 1;
  }

  renew(
    held: { readonly batches: readonly BatchLease[]; readonly chunks: readonly ChunkLease[] },
    claim: Claim,
  ): Renewal {
    const { renewBatch, renewChunk } = this.#statements;
    const { leaseExpiresAtMs } = claimValues(claim);
    return writeUnsynced(this.#db, () => {
      const lostBatches = held.batches.filter(
        (lease) => renewBatch.run({ ...lease, leaseExpiresAtMs }).changes === 0,
      );
      const lostChunks = held.chunks.filter(
        (lease) => renewChunk.run({ ...lease, leaseExpiresAtMs }).changes === 0,
      );
      const kept = new Set<BatchId>();
      for (const lease of held.batches) if (!lostBatches.includes(lease)) kept.add(lease.batchId);
      for (const lease of held.chunks) if (!lostChunks.includes(lease)) kept.add(lease.batchId);
      return { lostBatches, lostChunks, stopping: this.#stopping(kept) };
    });
  }

  #stopping(ids: ReadonlySet<BatchId>): Renewal["stopping"] {
    return [...ids].flatMap((batchId) => {
      const reason = this.#statements.findStopReason.get({ batchId })?.reason ?? null;
      return reason === null ? [] : [{ batchId, reason }];
    });
  }

  /** For the one owner of the database, when it starts: whoever held a lease before is gone. */
  takeAllBack(): void {
    write(this.#db, () => {
      this.#db
        .update(batches)
        .set(NO_LEASE)
        .where(and(isOpenBatch, isNotNull(batches.leaseOwner)))
        .run();
      this.#db
        .update(chunks)
        .set(NO_LEASE)
        .where(and(isOpenChunk, isNotNull(chunks.leaseOwner)))
        .run();
      this.#db.update(deliveries).set(NO_LEASE).where(isNotNull(deliveries.leaseOwner)).run();
      // A key without an answer stands for a request that came to nothing.
      this.#db.delete(idempotencyKeys).where(isKeyInProgress).run();
      // Nobody is left to write the row that a blob was meant for.
      this.#db.delete(blobIntents).run();
    });
  }
}
