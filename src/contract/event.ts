/** The event that a webhook receives: a batch is final, with the way it ended and the counts of its lines. */

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
  /** The time at which the batch became final, in Unix seconds. */
  readonly created_at: number;
  readonly data: {
    readonly id: string;
    /**
     * batchd's own addition: a `completed` batch may have failed lines, and its receiver wants to know that at once.
     */
    readonly x_batchd: {
      readonly request_counts: {
        readonly total: number;
        readonly completed: number;
        readonly failed: number;
      };
    };
  };
}
