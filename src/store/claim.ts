/** A bid for work: who asks, and until when the work is theirs without a renewal. */
export interface Claim {
  readonly owner: string;
  readonly nowMs: number;
  readonly ttlMs: number;
}
