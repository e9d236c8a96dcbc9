/**
 * The parts of replicas in upstream limits.
 *
 * Two replicas that divide at the same moment could both take the last slot. So each first locks the one row of
 * `installation`, which nothing else locks.
 */

import { divideTargets, type SlotNeed, type SlotShare } from "../../batch/slot-share.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, gt, inArray, lte, or, sql } from "./drizzle.ts";
import { installation } from "./file-schema.ts";
import { type Bid, later } from "./leases.ts";
import { slotShares } from "./schema.ts";

export class PostgresShares {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  renew(bid: Bid, needs: readonly SlotNeed[]): Promise<SlotShare[]> {
    const { owner, now, ttlMs } = bid;
    return this.#db.transaction(async (db) => {
      const nowMs = await lockDivision(db, bid);
      await db
        .delete(slotShares)
        .where(or(eq(slotShares.owner, owner), lte(slotShares.expiresAtMs, now)));
      const others = await findSharers(db, bid, needs);
      const { shares, kept } = divideTargets(owner, needs, { others, nowMs });
      const expiresAtMs = later(now, ttlMs);
      const rows = kept.map((each) => ({ ...each, expiresAtMs }));
      if (rows.length > 0) await db.insert(slotShares).values(rows);
      return shares;
    });
  }

  async release(owner: string): Promise<void> {
    await this.#db.change((db) => db.delete(slotShares).where(eq(slotShares.owner, owner)));
  }
}

/** Returns the present time, once no other replica divides. */
async function lockDivision(db: Db, { now }: Bid): Promise<number> {
  const [row] = await db
    .select({ nowMs: sql<string>`${now}` })
    .from(installation)
    .for("update");
  if (row === undefined) throw new Error("the table `installation` has lost its row");
  return Number(row.nowMs);
}

function findSharers(db: Db, { now }: Bid, needs: readonly SlotNeed[]) {
  const names = needs.map(({ target }) => target);
  return db
    .select({
      owner: slotShares.owner,
      target: slotShares.target,
      wanted: slotShares.wanted,
      held: slotShares.held,
    })
    .from(slotShares)
    .where(and(inArray(slotShares.target, names), gt(slotShares.expiresAtMs, now)));
}
