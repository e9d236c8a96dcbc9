/**
 * The parts of replicas in upstream limits. Only one process uses a SQLite store, so they are in memory: nothing of
 * them has a meaning after it.
 */

import { type Sharer, type SlotNeed, slotCountOf, turnAt } from "../../batch/slot-share.ts";
import type { Claim } from "../claim.ts";
import type { TargetShare } from "../replicas.ts";

interface Part {
  readonly expiresAtMs: number;
  readonly sharers: ReadonlyMap<string, Sharer>;
}

export class SqliteShares {
  readonly #parts = new Map<string, Part>();

  renew({ owner, ttlMs }: Claim, needs: readonly SlotNeed[], nowMs: number): TargetShare[] {
    for (const [other, { expiresAtMs }] of this.#parts) {
      if (expiresAtMs <= nowMs) this.#parts.delete(other);
    }
    this.#parts.delete(owner);
    const shares = needs.map(({ target, limit, wanted }) => {
      const others = [...this.#parts.values()].flatMap(({ sharers }) => sharers.get(target) ?? []);
      const me = { owner, wanted, held: 0 };
      const sharers = [...others, me].toSorted((a, b) => (a.owner < b.owner ? -1 : 1));
      return { target, slotCount: slotCountOf(owner, { limit, sharers, turn: turnAt(nowMs) }) };
    });
    const sharers = shares.map(({ target, slotCount }, i): [string, Sharer] => {
      const { wanted = 0, inFlight = 0 } = needs[i] ?? {};
      return [target, { owner, wanted, held: Math.max(slotCount, inFlight) }];
    });
    this.#parts.set(owner, { expiresAtMs: nowMs + ttlMs, sharers: new Map(sharers) });
    return shares;
  }

  release(owner: string): void {
    this.#parts.delete(owner);
  }
}
