/** A bid for work: who asks, and for how long the work is theirs without a renewal. The store's clock counts. */
export interface Claim {
  readonly owner: string;
  readonly ttlMs: number;
}
