/** Keys of requests that may be repeated: a key is held during the work on the answer, and then remembered with it. */

import type { Claim } from "../claim.ts";
import {
  IDEMPOTENCY_KEY_KEPT_MS,
  IdempotencyKeyLost,
  type IdempotencyState,
  type IdempotencyStore,
  type Receipt,
} from "../idempotency.ts";
import { isSelected } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, sql } from "./drizzle.ts";
import { idempotencyKeys } from "./file-schema.ts";
import { heldBy, NO_LEASE } from "./leases.ts";

const FORGETTING_PAGE = 10_000;

type Held = Pick<Receipt, "project" | "key" | "owner">;

const isKey = (project: string, key: string) =>
  and(eq(idempotencyKeys.project, project), eq(idempotencyKeys.key, key));

/** An answered key has no owner. */
const isHeld = ({ project, key, owner }: Held) =>
  and(isKey(project, key), eq(idempotencyKeys.leaseOwner, owner));

/** Takes part in the transaction that stores the object, and fails it when another request has the key. */
export async function recordReceipt(
  db: Db,
  { fingerprint, answer, ...held }: Receipt,
): Promise<void> {
  const { rowCount } = await db
    .update(idempotencyKeys)
    .set({ fingerprint, answer, ...NO_LEASE })
    .where(isHeld(held));
  if (rowCount === 0) throw new IdempotencyKeyLost();
}

export class PostgresIdempotency implements IdempotencyStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * No transaction holds the row between the two statements, as repeated requests would wait for each other. A key that is
   * released between them counts as in progress, so that the client asks again.
   */
  async claimIdempotencyKey(project: string, key: string, claim: Claim): Promise<IdempotencyState> {
    const bid = this.#db.timed(claim);
    const { now } = bid;
    const fresh = { createdAtMs: now, ...heldBy(bid) };
    const { rowCount } = await this.#db.change((db) =>
      db
        .insert(idempotencyKeys)
        .values({ project, key, ...fresh })
        .onConflictDoUpdate({
          target: [idempotencyKeys.project, idempotencyKeys.key],
          set: { ...fresh, fingerprint: null, answer: null },
          // An answered key has no lease, so it cannot run out before its time.
          setWhere: sql`
            ${idempotencyKeys.createdAtMs} <= ${now} - ${IDEMPOTENCY_KEY_KEPT_MS}::bigint
            or ${idempotencyKeys.leaseExpiresAtMs} <= ${now}`,
        }),
    );
    if (rowCount === 1) return { kind: "new" };
    return this.#db.read((db) => stateOf(db, project, key));
  }

  async renewIdempotencyKeyIfHeld(project: string, key: string, claim: Claim): Promise<boolean> {
    const bid = this.#db.timed(claim);
    const { leaseExpiresAtMs } = heldBy(bid);
    const { rowCount } = await this.#db.change((db) =>
      db
        .update(idempotencyKeys)
        .set({ createdAtMs: bid.now, leaseExpiresAtMs })
        .where(isHeld({ project, key, owner: claim.owner })),
    );
    return rowCount === 1;
  }

  async releaseIdempotencyKeyIfHeld(project: string, key: string, owner: string): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db.delete(idempotencyKeys).where(isHeld({ project, key, owner })),
    );
    return rowCount === 1;
  }

  async forgetIdempotencyKeys(): Promise<void> {
    const now = this.#db.now();
    const forgetPage = async () => {
      const { rowCount } = await this.#db.change((db) =>
        db.delete(idempotencyKeys).where(
          isSelected(sql`
            select sequence from idempotency_keys
            where created_at_ms <= ${now} - ${IDEMPOTENCY_KEY_KEPT_MS}::bigint
            limit ${FORGETTING_PAGE} for update skip locked`),
        ),
      );
      return rowCount;
    };
    while ((await forgetPage()) === FORGETTING_PAGE);
  }
}

async function stateOf(db: Db, project: string, key: string): Promise<IdempotencyState> {
  const [row] = await db.select().from(idempotencyKeys).where(isKey(project, key));
  const { fingerprint, answer } = row ?? {};
  // A key has both or neither: see the CHECK `key_is_in_progress_or_answered`.
  if (fingerprint == null || answer == null) return { kind: "in_progress" };
  return { kind: "answered", fingerprint, answer };
}
