/**
 * The replicas and their parts of upstream limits. Only one process uses a SQLite store, so they are in memory: nothing
 * of them has a meaning after it.
 */

import { divideTargets, type SlotDemand, type TargetSharer } from "../../batch/slot-share.ts";
import {
  LEFT_KEPT_MS,
  type Peer,
  type RenewedReplica,
  type Replica,
  type ReplicaStore,
} from "../replicas.ts";
import type { Now } from "./database.ts";

interface Member {
  readonly report: string;
  readonly mayKeepHouse: boolean;
  readonly expiresAtMs: number;
  readonly sharers: readonly TargetSharer[];
}

export class SqliteReplicas implements ReplicaStore {
  readonly #now: Now;
  /** The members by owner, in the order in which they came. */
  readonly #members = new Map<string, Member>();

  constructor(now: Now) {
    this.#now = now;
  }

  async renewReplica(replica: Replica, demands: readonly SlotDemand[]): Promise<RenewedReplica> {
    const nowMs = this.#now();
    const { owner, ttlMs, report, mayKeepHouse } = replica;
    for (const [other, { expiresAtMs }] of this.#members) {
      const isForgotten = expiresAtMs <= nowMs - LEFT_KEPT_MS;
      if (isForgotten || (other === owner && expiresAtMs <= nowMs)) this.#members.delete(other);
    }
    // A member that renews keeps its place in the map.
    const all = [...this.#members].filter(([, { expiresAtMs }]) => expiresAtMs > nowMs);
    const peers = all.filter(([other]) => other !== owner);
    const others = peers.flatMap(([, { sharers }]) => sharers);
    const { shares, kept: sharers } = divideTargets(owner, demands, { others, nowMs });
    const expiresAtMs = nowMs + ttlMs;
    this.#members.set(owner, { report, mayKeepHouse, expiresAtMs, sharers });
    const [housekeeper] =
      [...this.#members].find(([, member]) => member.mayKeepHouse && member.expiresAtMs > nowMs) ??
      [];
    return {
      shares,
      peers: peers.map(([other, member]) => ({ owner: other, report: member.report })),
      isHousekeeper: housekeeper === owner,
      nowMs,
    };
  }

  async releaseReplica(owner: string): Promise<void> {
    const nowMs = this.#now();
    const member = this.#members.get(owner);
    if (member === undefined) return;
    const expiresAtMs = Math.min(member.expiresAtMs, nowMs);
    this.#members.set(owner, { ...member, expiresAtMs, sharers: [] });
  }

  async listLeftReplicas(): Promise<Peer[]> {
    const nowMs = this.#now();
    return [...this.#members]
      .filter(([, { expiresAtMs: at }]) => at <= nowMs && at > nowMs - LEFT_KEPT_MS)
      .map(([owner, { report }]) => ({ owner, report }));
  }
}
