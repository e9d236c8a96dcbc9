/**
 * The port for what replicas divide among themselves: the requests that each may have in flight at an upstream.
 *
 * A replica renews its part every few seconds, for all its targets at once. No line may ever ask the store for a place.
 */
import type { SlotNeed, SlotShare } from "../batch/slot-share.ts";
import type { Claim } from "./claim.ts";

export interface ReplicaStore {
  /**
   * Divides the limits of these targets among the replicas whose claims have not ended, and returns the part of this
   * one. The parts of all replicas never exceed a limit together: a replica gets more only after another has renewed
   * with less, has released its part, or is gone.
   */
  renewShares(replica: Claim, needs: readonly SlotNeed[]): Promise<SlotShare[]>;
  /** Gives all parts of a replica back. */
  releaseShares(owner: string): Promise<void>;
}
