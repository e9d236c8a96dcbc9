/**
 * Keys of requests that may be repeated. A request holds its key while it is worked on; then the key is kept with the
 * answer.
 */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { Claim } from "../claim.ts";
import {
  IDEMPOTENCY_KEY_KEPT_MS,
  IdempotencyKeyLost,
  type IdempotencyState,
  type IdempotencyStore,
  type Receipt,
} from "../idempotency.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { and, eq, lte, sql } from "./drizzle.ts";
import { idempotencyKeys } from "./file-schema.ts";
import { claimValues, NO_LEASE } from "./leases.ts";

/** One statement deletes so many keys: some 5 ms. */
const FORGETTING_PAGE = 2_000;

type Held = Pick<Receipt, "project" | "key" | "owner">;

const isKey = (project: string, key: string) =>
  and(eq(idempotencyKeys.project, project), eq(idempotencyKeys.key, key));

/** An answered key has no owner. */
const isHeld = ({ project, key, owner }: Held) =>
  and(isKey(project, key), eq(idempotencyKeys.leaseOwner, owner));

const isOverdue = (nowMs: number) => lte(idempotencyKeys.leaseExpiresAtMs, nowMs);

const isOld = (nowMs: number) => lte(idempotencyKeys.createdAtMs, nowMs - IDEMPOTENCY_KEY_KEPT_MS);

/** Takes part in the transaction that stores the object, and ends it when the key is no longer the owner's. */
export function recordReceipt(db: Db, { fingerprint, answer, ...held }: Receipt): void {
  const { changes } = db
    .update(idempotencyKeys)
    .set({ fingerprint, answer, ...NO_LEASE })
    .where(isHeld(held))
    .run();
  if (changes === 0) throw new IdempotencyKeyLost();
}

export class SqliteIdempotency implements IdempotencyStore {
  readonly #db: Db;
  readonly #now: Now;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
  }

  async claimIdempotencyKey(project: string, key: string, claim: Claim): Promise<IdempotencyState> {
    const { owner: leaseOwner, nowMs, leaseExpiresAtMs } = claimValues(claim, this.#now());
    const fresh = { createdAtMs: nowMs, leaseOwner, leaseExpiresAtMs };
    return write(this.#db, () => {
      const { changes } = this.#db
        .insert(idempotencyKeys)
        .values({ project, key, ...fresh })
        .onConflictDoUpdate({
          target: [idempotencyKeys.project, idempotencyKeys.key],
          set: { ...fresh, fingerprint: null, answer: null },
          // An answered key has no lease, so only its age can free it.
          setWhere: sql`${isOld(nowMs)} or ${isOverdue(nowMs)}`,
        })
        .run();
      return changes === 1 ? { kind: "new" } : this.#stateOf(project, key);
    });
  }

  async renewIdempotencyKeyIfHeld(project: string, key: string, claim: Claim): Promise<boolean> {
    const { owner, nowMs, leaseExpiresAtMs } = claimValues(claim, this.#now());
    return writeUnsynced(this.#db, () => {
      const { changes } = this.#db
        .update(idempotencyKeys)
        .set({ createdAtMs: nowMs, leaseExpiresAtMs })
        .where(isHeld({ project, key, owner }))
        .run();
      return changes === 1;
    });
  }

  async releaseIdempotencyKeyIfHeld(project: string, key: string, owner: string): Promise<boolean> {
    return (
      this.#db.delete(idempotencyKeys).where(isHeld({ project, key, owner })).run().changes === 1
    );
  }

  /** Deletes the keys page by page: a client may have sent 100,000 within a minute. */
  async forgetIdempotencyKeys(): Promise<void> {
    const nowMs = this.#now();
    const page = sql`
      select sequence from idempotency_keys where created_at_ms <= ${nowMs - IDEMPOTENCY_KEY_KEPT_MS}
      limit ${FORGETTING_PAGE}`;
    const forgetPage = () =>
      this.#db.delete(idempotencyKeys).where(sql`sequence in (${page})`).run().changes;
    while (forgetPage() === FORGETTING_PAGE) await nextTurn();
  }

  #stateOf(project: string, key: string): IdempotencyState {
    const row = this.#db.select().from(idempotencyKeys).where(isKey(project, key)).get();
    const { fingerprint, answer } = row ?? {};
    // A key has both or neither: see the CHECK `key_is_in_progress_or_answered`.
    if (fingerprint == null || answer == null) return { kind: "in_progress" };
    return { kind: "answered", fingerprint, answer };
  }
}
