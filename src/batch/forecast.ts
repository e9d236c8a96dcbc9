/** When a batch will be done, as far as anybody can tell. */
export interface Forecast {
  /** When its last line will have its answer; null until that can be measured. */
  readonly etaAtMs: number | null;
  /** Whether it may not be done when its window ends. */
  readonly isAtRisk: boolean;
  /** 0 while its lines are being sent, else its place among the batches that wait; null when nobody knows. */
  readonly queuePosition: number | null;
}
