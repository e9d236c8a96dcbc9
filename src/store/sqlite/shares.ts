/**
 * The parts of replicas in upstream limits. Only one process uses a SQLite store, so they are in memory: nothing of
 * them has a meaning after it.
 */
import {
  divideTargets,
  type SlotNeed,
  type SlotShare,
  type TargetSharer,
} from "../../batch/slot-share.ts";
import type { Claim } from "../claim.ts";

interface Part {
  readonly expiresAtMs: number;
  readonly sharers: readonly TargetSharer[];
}

export class SqliteShares {
  /** By owner. */
  readonly #parts = new Map<string, Part>();

  renew({ owner, ttlMs }: Claim, needs: readonly SlotNeed[], nowMs: number): SlotShare[] {
    for (const [other, { expiresAtMs }] of this.#parts) {
      if (other === owner || expiresAtMs <= nowMs) this.#parts.delete(other);
    }
    const others = [...this.#parts.values()].flatMap(({ sharers }) => sharers);
    const { shares, kept } = divideTargets(owner, needs, { others, nowMs });
    this.#parts.set(owner, { expiresAtMs: nowMs + ttlMs, sharers: kept });
    return shares;
  }

  release(owner: string): void {
    this.#parts.delete(owner);
  }
}
