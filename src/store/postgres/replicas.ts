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
      await removeEnded(db, replica);
      const membership = await renewMembership(db, replica);
      const others = needs.length === 0 ? [] : await findSharers(db, now, needs);
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

/** Removes the replicas and the parts whose claims have ended, and the former parts of this replica. */
async function removeEnded(db: Db, { owner, now }: TimedReplica): Promise<void> {
  const ended = db
    .$with("ended")
    .as(
      db
        .delete(replicas)
        .where(lte(replicas.expiresAtMs, now))
        .returning({ owner: replicas.owner }),
    );
  await db
    .with(ended)
    .delete(slotShares)
    .where(or(eq(slotShares.owner, owner), lte(slotShares.expiresAtMs, now)));
}

interface MemberRow extends Record<string, unknown> {
  readonly owner: string;
  readonly report: string;
  readonly may_keep_house: boolean;
}

/** Keeps the row of the replica, and reads the others, whose claims have not ended. */
async function renewMembership(
  db: Db,
  { owner, report, mayKeepHouse, now, ttlMs }: TimedReplica,
): Promise<Pick<RenewedReplica, "peers" | "isHousekeeper">> {
  // A statement does not see the row that it writes, so that row comes from the writing part.
  const { rows } = await db.execute<MemberRow>(sql`
    with own as (
      insert into replicas (owner, report, may_keep_house, expires_at_ms)
      values (${owner}, ${sql.param(report, replicas.report)}, ${mayKeepHouse}, ${later(now, ttlMs)})
      on conflict (owner) do update set
        report = excluded.report, may_keep_house = excluded.may_keep_house,
        expires_at_ms = excluded.expires_at_ms
      returning sequence, owner, report, may_keep_house)
    select sequence, owner, report, may_keep_house from own
    union all
    select sequence, owner, report, may_keep_house from replicas where owner <> ${owner}
    order by sequence`);
  return {
    peers: rows
      .filter((each) => each.owner !== owner)
      .map((each) => ({ owner: each.owner, report: each.report })),
    isHousekeeper: rows.find((each) => each.may_keep_house)?.owner === owner,
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
