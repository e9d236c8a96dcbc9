/** Keys of requests that may be repeated: held while somebody works on the answer, then remembered with it. */

import type { Claim } from "../claim.ts";
import { IDEMPOTENCY_KEY_KEPT_MS, type IdempotencyState, type Receipt } from "../idempotency.ts";
import { isKeyInProgress } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, eq, lte, sql } from "./drizzle.ts";
import { claimValues, NO_LEASE } from "./leases.ts";
import { idempotencyKeys } from "./schema.ts";

const isKey = (project: string, key: string) =>
  and(eq(idempotencyKeys.project, project), eq(idempotencyKeys.key, key));

const isOld = (nowMs: number) => lte(idempotencyKeys.createdAtMs, nowMs - IDEMPOTENCY_KEY_KEPT_MS);

export class SqliteIdempotency {
  readonly #db: Db;

  constructor(db: Db) {
    this.#db = db;
  }

  claim(project: string, key: string, claim: Claim): IdempotencyState {
    const { owner: leaseOwner, nowMs, leaseExpiresAtMs } = claimValues(claim);
    const fresh = { createdAtMs: nowMs, leaseOwner, leaseExpiresAtMs };
    return write(this.#db, () => {
      const { changes } = this.#db
        .insert(idempotencyKeys)
        .values({ project, key, ...fresh })
        .onConflictDoUpdate({
          target: [idempotencyKeys.project, idempotencyKeys.key],
          set: { ...fresh, fingerprint: null, answer: null },
          // An answered key has no lease, so nothing of its kind runs out before its time.
          setWhere: sql`${isOld(nowMs)} or ${lte(idempotencyKeys.leaseExpiresAtMs, nowMs)}`,
        })
        .run();
      return changes === 1 ? { kind: "new" } : this.#stateOf(project, key);
    });
  }

  /** Takes part in the transaction that stores the object. The first answer to a key stays. */
  record({ project, key, fingerprint, answer }: Receipt): void {
    this.#db
      .update(idempotencyKeys)
      .set({ fingerprint, answer, ...NO_LEASE })
      .where(and(isKey(project, key), isKeyInProgress))
      .run();
  }

  release(project: string, key: string): void {
    this.#db
      .delete(idempotencyKeys)
      .where(and(isKey(project, key), isKeyInProgress))
      .run();
  }

  forgetOld(nowMs: number): void {
    this.#db.delete(idempotencyKeys).where(isOld(nowMs)).run();
  }

  #stateOf(project: string, key: string): IdempotencyState {
    const row = this.#db.select().from(idempotencyKeys).where(isKey(project, key)).get();
    const { fingerprint, answer } = row ?? {};
    // Both or neither: see the CHECK `key_is_in_progress_or_answered`.
    if (fingerprint == null || answer == null) return { kind: "in_progress" };
    return { kind: "answered", fingerprint, answer };
  }
}
