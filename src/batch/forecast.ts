import type { WaitingReason } from "../contract/batch.ts";

/** Why no line of a batch goes on at the moment. */
export interface Waiting {
  readonly reason: WaitingReason;
  readonly sinceMs: number;
  /** What was wrong at an upstream, without anything of an answer but its status and code; null when it is not at fault. */
  readonly upstreamError: string | null;
}

/** How the first lines of a batch have all failed. */
export interface CommonFailure {
  readonly lineCount: number;
  /** Null without an answer. */
  readonly statusCode: number | null;
  readonly code: string | null;
  /** What the first of them was told. */
  readonly message: string | null;
}

/** When a batch will be done, as far as anybody can tell. */
export interface Forecast {
  /** When its last line will have its answer; null until that can be measured. */
  readonly etaAtMs: number | null;
  /** Whether it may not be done when its window ends. */
  readonly isAtRisk: boolean;
  /** 0 while its lines are being sent, else its place among the batches that wait; null when nobody knows. */
  readonly queuePosition: number | null;
  /** Null while its lines go on. */
  readonly waiting: Waiting | null;
  readonly commonFailure: CommonFailure | null;
}
