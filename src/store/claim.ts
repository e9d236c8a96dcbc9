/** A bid for work: its owner, and how long the work is the owner's without a renewal. The store's clock counts. */
export interface Claim {
  readonly owner: string;
  readonly ttlMs: number;
}
