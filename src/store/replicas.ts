/**
 * The port for what replicas have in common: the limits of upstreams, what they know of each other, and the work that
 * only one of them does.
 *
 * A replica renews its place among the others every few seconds, for everything at once. No line may ever ask the store
 * for a slot.
 */
import type { SlotDemand, SlotShare } from "../batch/slot-share.ts";
import type { Claim } from "./claim.ts";

/** A process, until its claim ends. */
export interface Replica extends Claim {
  /** What the others are to know of it. Only replicas read it; another version of batchd may have written it. */
  readonly report: string;
  /** Whether it can do the housekeeping. A process that is ending cannot. */
  readonly mayKeepHouse: boolean;
}

export interface Peer {
  readonly owner: string;
  readonly report: string;
}

export interface RenewedReplica {
  /** The parts of the targets that the replica needs. */
  readonly shares: readonly SlotShare[];
  /** The other replicas whose claims have not ended. */
  readonly peers: readonly Peer[];
  /** Whether the housekeeping is the duty of this replica until its claim ends: of those that may, it is here longest. */
  readonly isHousekeeper: boolean;
  /** The present time of the store. */
  readonly nowMs: number;
}

/** How long a replica is remembered that has left. A machine may take some minutes to start again. */
export const LEFT_KEPT_MS = 5 * 60 * 1000;

export interface ReplicaStore {
  /**
   * Keeps the report, and divides the limits of these targets among the replicas whose claims have not ended. The parts
   * of all replicas never exceed a limit together: a replica gets more only after another has renewed with less, has
   * released its part, or is gone.
   */
  renewReplica(replica: Replica, demands: readonly SlotDemand[]): Promise<RenewedReplica>;
  /** Gives all parts and duties of a replica back. */
  releaseReplica(owner: string): Promise<void>;
  /** Lists the replicas whose claims have ended within the last {@link LEFT_KEPT_MS}, released ones too. */
  listLeftReplicas(): Promise<Peer[]>;
}
