/**
 * The replicas and their parts of upstream limits.
 *
 * Two replicas that divide at the same moment could both take the last slot, and two that join at the same moment could both
 * take themselves for the oldest. So each first locks the one row of `installation`, which nothing else locks.
 */

import { divideTargets, type SlotDemand, type TargetSharer } from "../../batch/slot-share.ts";
import {
  LEFT_KEPT_MS,
  type Peer,
  type RenewedReplica,
  type Replica,
  type ReplicaStore,
} from "../replicas.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, gt, lte, type SQL, sql } from "./drizzle.ts";
import { installation } from "./file-schema.ts";
import { arrayOf, later } from "./leases.ts";
import { replicas, slotShares } from "./schema.ts";

/** No claim is as long. One that seems so was made before the clock of the database was set back. */
const NO_CLAIM_MS = 60_000;

/** A replica, and the present time by the clock of the database. */
interface TimedReplica extends Replica {
  readonly now: SQL;
}

export class PostgresReplicas implements ReplicaStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async renewReplica(asked: Replica, demands: readonly SlotDemand[]): Promise<RenewedReplica> {
    const replica = this.#db.timed(asked);
    // A member that needs no part of a limit takes none from another, so it need not wait for its turn.
    if (demands.length === 0) {
      const membership = await this.#db.change((db) => renewMembership(db, replica, []));
      if (membership !== null) return { ...membership.renewed, shares: [] };
    }
    const { owner, now, ttlMs } = replica;
    const targets = demands.map(({ target }) => target);
    return this.#db.transaction(async (db) => {
      await lockDivision(db);
      const { others, renewed } =
        (await renewMembership(db, replica, targets)) ?? (await join(db, replica, targets));
      const { shares, kept } = divideTargets(owner, demands, { others, nowMs: renewed.nowMs });
      const expiresAtMs = later(now, ttlMs);
      const rows = kept.map((each) => ({ ...each, expiresAtMs }));
      if (rows.length > 0) await db.insert(slotShares).values(rows);
      return { ...renewed, shares };
    });
  }

  /** The row stays for those who ask what has left. */
  releaseReplica(owner: string): Promise<void> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      await db.delete(slotShares).where(eq(slotShares.owner, owner));
      const expiresAtMs = sql`least(${replicas.expiresAtMs}, ${now})`;
      await db.update(replicas).set({ expiresAtMs }).where(eq(replicas.owner, owner));
    });
  }

  listLeftReplicas(): Promise<Peer[]> {
    const now = this.#db.now();
    const { owner, report, expiresAtMs } = replicas;
    const hasLeft = and(lte(expiresAtMs, now), gt(expiresAtMs, later(now, -LEFT_KEPT_MS)));
    return this.#db.read((db) => db.select({ owner, report }).from(replicas).where(hasLeft));
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
  readonly sharers: readonly TargetSharer[] | null;
}

interface Membership {
  readonly renewed: Omit<RenewedReplica, "shares">;
  /** The parts that others have of the limits that this replica needs a part of. */
  readonly others: readonly TargetSharer[];
}

/**
 * Keeps the row of the replica, and reads the others whose claims have not ended. Removes the parts of those whose claims have,
 * the rows of those that have left long ago, and the former parts of this replica. After the clock was set back, a claim of
 * another ends as if it were made now: that one renews it, unless it was killed. Returns null when the replica has no row or its
 * claim has ended.
 */
async function renewMembership(
  db: Db,
  replica: TimedReplica,
  targets: readonly string[],
): Promise<Membership | null> {
  const { owner, report, mayKeepHouse, now, ttlMs } = replica;
  // A statement does not see the rows that it writes, so the own row comes from the writing part.
  const { rows } = await db.execute<MemberRow>(sql`
    with ended as (
      delete from replicas
        where expires_at_ms <= ${later(now, -LEFT_KEPT_MS)} and owner <> ${owner}),
    unshared as (
      delete from slot_shares where owner = ${owner} or expires_at_ms <= ${now}),
    late as (
      update replicas set expires_at_ms = ${later(now, ttlMs)}
        where owner <> ${owner} and expires_at_ms > ${later(now, NO_CLAIM_MS)}),
    late_shares as (
      update slot_shares set expires_at_ms = ${later(now, ttlMs)}
        where owner <> ${owner} and expires_at_ms > ${later(now, NO_CLAIM_MS)}),
    own as (
      update replicas set report = ${sql.param(report, replicas.report)},
        may_keep_house = ${mayKeepHouse}, expires_at_ms = ${later(now, ttlMs)}
        where owner = ${owner} and expires_at_ms > ${now}
      returning sequence, owner, report, may_keep_house)
    select *, ${now} as now_ms, (${sharersOf(targets, replica)}) as sharers from own
    union all
    select sequence, owner, report, may_keep_house, ${now}, null from replicas
    where owner <> ${owner} and expires_at_ms > ${now}
    order by sequence`);
  const own = rows.find((each) => each.owner === owner);
  if (own === undefined) return null;
  const renewed = {
    nowMs: Number(own.now_ms),
    peers: rows.filter((each) => each !== own).map(({ owner, report }) => ({ owner, report })),
    isHousekeeper: rows.find((each) => each.may_keep_house) === own,
  };
  return { renewed, others: own.sharers ?? [] };
}

const sharersOf = (targets: readonly string[], { owner, now }: TimedReplica): SQL => sql`
  select json_agg(json_build_object('owner', owner, 'target', target, 'wanted', wanted, 'held', held))
  from slot_shares
  where target = any(${arrayOf(targets, "text")}) and owner <> ${owner} and expires_at_ms > ${now}`;

/**
 * Makes the replica the youngest. One whose claim had ended begins anew, because another one may have taken its duties
 * over. The division is locked, so the members before it are seen, and have smaller numbers.
 */
async function join(
  db: Db,
  replica: TimedReplica,
  targets: readonly string[],
): Promise<Membership> {
  const { owner, report, mayKeepHouse, now, ttlMs } = replica;
  await db.delete(replicas).where(and(eq(replicas.owner, owner), lte(replicas.expiresAtMs, now)));
  await db.insert(replicas).values({ owner, report, mayKeepHouse, expiresAtMs: later(now, ttlMs) });
  const membership = await renewMembership(db, replica, targets);
  if (membership === null) throw new Error("the claim of a replica ended while it joined");
  return membership;
}
