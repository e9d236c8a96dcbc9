/** What a webhook is told: that a batch is final, how it ended, and how its lines did. */

export const EVENT_TYPES = [
  "batch.completed",
  "batch.failed",
  "batch.expired",
  "batch.cancelled",
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

export interface BatchEvent {
  readonly object: "event";
  readonly id: string;
  readonly type: EventType;
  /** Unix seconds at which the batch became final. */
  readonly created_at: number;
  readonly data: {
    readonly id: string;
    /** What batchd adds: a `completed` batch may have failed lines, and its receiver wants to know at once. */
    readonly x_batchd: {
      readonly request_counts: {
        readonly total: number;
        readonly completed: number;
        readonly failed: number;
      };
    };
  };
}
