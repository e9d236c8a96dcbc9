/**
 * The replicas and their parts of upstream limits.
 *
 * Two replicas that divide at the same moment could both take the last slot. So each first locks the one row of
 * `installation`, which nothing else locks.
 */

import { divideTargets, type SlotNeed } from "../../batch/slot-share.ts";
import type { RenewedReplica, Replica } from "../replicas.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, gt, inArray, lte, or, type SQL, sql } from "./drizzle.ts";
import { installation } from "./file-schema.ts";
import { later } from "./leases.ts";
import { replicas, slotShares } from "./schema.ts";

/** A replica, and the present time by the clock of the database. */
interface TimedReplica extends Replica {
  readonly now: SQL;
}

export class PostgresReplicas {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  renew(replica: TimedReplica, needs: readonly SlotNeed[]): Promise<RenewedReplica> {
    const { owner, now, ttlMs } = replica;
    return this.#db.transaction(async (db) => {
      const nowMs = await lockDivision(db, now);
      const membership = await renewMembership(db, replica);
      await db
        .delete(slotShares)
        .where(or(eq(slotShares.owner, owner), lte(slotShares.expiresAtMs, now)));
      const others = await findSharers(db, now, needs);
      const { shares, kept } = divideTargets(owner, needs, { others, nowMs });
      const expiresAtMs = later(now, ttlMs);
      const rows = kept.map((each) => ({ ...each, expiresAtMs }));
      if (rows.length > 0) await db.insert(slotShares).values(rows);
      return { shares, nowMs, ...membership };
    });
  }

  release(owner: string): Promise<void> {
    return this.#db.transaction(async (db) => {
      await db.delete(slotShares).where(eq(slotShares.owner, owner));
      await db.delete(replicas).where(eq(replicas.owner, owner));
    });
  }
}

/** Returns the present time, once no other replica divides. */
async function lockDivision(db: Db, now: SQL): Promise<number> {
  const [row] = await db
    .select({ nowMs: sql<string>`${now}` })
    .from(installation)
    .for("update");
  if (row === undefined) throw new Error("the table `installation` has lost its row");
  return Number(row.nowMs);
}

/** Keeps the row of the replica, removes those whose claims have ended, and reads the others. */
async function renewMembership(
  db: Db,
  { owner, report, mayKeepHouse, now, ttlMs }: TimedReplica,
): Promise<Pick<RenewedReplica, "peers" | "isHousekeeper">> {
  await db.delete(replicas).where(lte(replicas.expiresAtMs, now));
  const row = { report, mayKeepHouse, expiresAtMs: later(now, ttlMs) };
  await db
    .insert(replicas)
    .values({ owner, ...row })
    .onConflictDoUpdate({ target: replicas.owner, set: row });
  const all = await db.select().from(replicas).orderBy(replicas.sequence);
  return {
    peers: all
      .filter((each) => each.owner !== owner)
      .map((each) => ({ owner: each.owner, report: each.report })),
    isHousekeeper: all.find((each) => each.mayKeepHouse)?.owner === owner,
  };
}

function findSharers(db: Db, now: SQL, needs: readonly SlotNeed[]) {
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
