/**
 * The replicas and their parts of upstream limits. Only one process uses a SQLite store, so they are in memory: nothing
 * of them has a meaning after it.
 */
import { divideTargets, type SlotDemand, type TargetSharer } from "../../batch/slot-share.ts";
import type { RenewedReplica, Replica } from "../replicas.ts";

interface Member {
  readonly report: string;
  readonly mayKeepHouse: boolean;
  readonly expiresAtMs: number;
  readonly sharers: readonly TargetSharer[];
}

export class SqliteReplicas {
  /** The members by owner, in the order in which they came. */
  readonly #members = new Map<string, Member>();

  renew(replica: Replica, demands: readonly SlotDemand[], nowMs: number): RenewedReplica {
    const { owner, ttlMs, report, mayKeepHouse } = replica;
    for (const [other, { expiresAtMs }] of this.#members) {
      if (expiresAtMs <= nowMs) this.#members.delete(other);
    }
    // A member that renews keeps its place in the map.
    const all = [...this.#members];
    const peers = all.filter(([other]) => other !== owner);
    const others = peers.flatMap(([, { sharers }]) => sharers);
    const { shares, kept: sharers } = divideTargets(owner, demands, { others, nowMs });
    const expiresAtMs = nowMs + ttlMs;
    this.#members.set(owner, { report, mayKeepHouse, expiresAtMs, sharers });
    const [housekeeper] = [...this.#members].find(([, member]) => member.mayKeepHouse) ?? [];
    return {
      shares,
      peers: peers.map(([other, member]) => ({ owner: other, report: member.report })),
      isHousekeeper: housekeeper === owner,
      nowMs,
    };
  }

  release(owner: string): void {
    this.#members.delete(owner);
  }
}
