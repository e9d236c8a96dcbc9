/**
 * The parts of replicas in upstream limits. Only one process uses a SQLite store, so they are in memory: nothing of
 * them has a meaning after it.
 */

import {
  type Sharer,
  type SlotNeed,
  type SlotShare,
  shareOf,
  turnAt,
} from "../../batch/slot-share.ts";
import type { Claim } from "../claim.ts";

interface Part {
  readonly expiresAtMs: number;
  readonly sharers: ReadonlyMap<string, Sharer>;
}

export class SqliteShares {
  readonly #parts = new Map<string, Part>();

  renew({ owner, ttlMs }: Claim, needs: readonly SlotNeed[], nowMs: number): SlotShare[] {
    for (const [other, { expiresAtMs }] of this.#parts) {
      if (expiresAtMs <= nowMs) this.#parts.delete(other);
    }
    this.#parts.delete(owner);
    const shares = needs.map(({ target, limit, wanted }) => {
      const others = [...this.#parts.values()].flatMap(({ sharers }) => sharers.get(target) ?? []);
      const me = { owner, wanted, held: 0 };
      const sharers = [...others, me].toSorted((a, b) => (a.owner < b.owner ? -1 : 1));
      return shareOf(target, owner, { limit, sharers, turn: turnAt(nowMs) });
    });
    const sharers = shares.map(({ target, slotCount }, i): [string, Sharer] => {
      const { wanted = 0, held = 0 } = needs[i] ?? {};
      return [target, { owner, wanted, held: Math.max(slotCount, held) }];
    });
    this.#parts.set(owner, { expiresAtMs: nowMs + ttlMs, sharers: new Map(sharers) });
    return shares;
  }

  release(owner: string): void {
    this.#parts.delete(owner);
  }
}
