/**
 * The replicas and their parts of upstream limits.
 *
 * Two replicas that divide at the same moment could both take the last slot. So each first locks the one row of
 * `installation`, which nothing else locks.
 */

import { divideTargets, type SlotNeed } from "../../batch/slot-share.ts";
import type { RenewedReplica, Replica } from "../replicas.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, gt, inArray, lte, type SQL, sql } from "./drizzle.ts";
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
    // A replica that needs no part of a limit takes none from another, so it need not wait for its turn.
    if (needs.length === 0) {
      return this.#db.change(async (db) => ({
        shares: [],
        ...(await renewMembership(db, replica)),
      }));
    }
    const { owner, now, ttlMs } = replica;
    return this.#db.transaction(async (db) => {
      await lockDivision(db);
      const membership = await renewMembership(db, replica);
      const others = await findSharers(db, now, needs);
      const { shares, kept } = divideTargets(owner, needs, { others, nowMs: membership.nowMs });
      const expiresAtMs = later(now, ttlMs);
      const rows = kept.map((each) => ({ ...each, expiresAtMs }));
      if (rows.length > 0) await db.insert(slotShares).values(rows);
      return { shares, ...membership };
    });
  }

  release(owner: string): Promise<void> {
    return this.#db.transaction(async (db) => {
      await db.delete(slotShares).where(eq(slotShares.owner, owner));
      await db.delete(replicas).where(eq(replicas.owner, owner));
    });
  }
}

/** Waits until no other replica divides. */
async function lockDivision(db: Db): Promise<void> {
  const rows = await db.select({ one: sql`1` }).from(installation).for("update");
  if (rows.length === 0) throw new Error("the table `installation` has lost its row");
}

interface MemberRow extends Record<string, unknown> {
  readonly owner: string;
  readonly report: string;
  readonly may_keep_house: boolean;
  readonly now_ms: string;
}

/**
 * Keeps the row of the replica, and reads the others whose claims have not ended. Removes those whose claims have, with
 * their parts, and the former parts of this replica.
 */
async function renewMembership(
  db: Db,
  replica: TimedReplica,
): Promise<Omit<RenewedReplica, "shares">> {
  const rows = await upsert(db, replica);
  const own = rows.find(({ owner }) => owner === replica.owner);
  if (own === undefined) {
    await removeOwn(db, replica);
    return renewMembership(db, replica);
  }
  return {
    nowMs: Number(own.now_ms),
    peers: rows.filter((each) => each !== own).map(({ owner, report }) => ({ owner, report })),
    isHousekeeper: rows.find((each) => each.may_keep_house) === own,
  };
}

/** Returns no row of the replica itself when its claim had ended. */
async function upsert(
  db: Db,
  { owner, report, mayKeepHouse, now, ttlMs }: TimedReplica,
): Promise<readonly MemberRow[]> {
  // A statement does not see the rows that it writes, so the own row comes from the writing part.
  const { rows } = await db.execute<MemberRow>(sql`
    with ended as (
      delete from replicas where expires_at_ms <= ${now} and owner <> ${owner}),
    unshared as (
      delete from slot_shares where owner = ${owner} or expires_at_ms <= ${now}),
    own as (
      insert into replicas (owner, report, may_keep_house, expires_at_ms)
      values (${owner}, ${sql.param(report, replicas.report)}, ${mayKeepHouse}, ${later(now, ttlMs)})
      on conflict (owner) do update set
        report = excluded.report, may_keep_house = excluded.may_keep_house,
        expires_at_ms = excluded.expires_at_ms
        where replicas.expires_at_ms > ${now}
      returning sequence, owner, report, may_keep_house)
    select *, ${now} as now_ms from own
    union all
    select sequence, owner, report, may_keep_house, ${now} from replicas
    where owner <> ${owner} and expires_at_ms > ${now}
    order by sequence`);
  return rows;
}

/** The replica begins anew as the youngest, because another one may have taken its duties over. */
async function removeOwn(db: Db, { owner, now }: TimedReplica): Promise<void> {
  await db.delete(replicas).where(and(eq(replicas.owner, owner), lte(replicas.expiresAtMs, now)));
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
