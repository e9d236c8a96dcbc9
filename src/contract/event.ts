/** What a webhook is told: that a batch is final, and how it ended. The rest is for its receiver to fetch. */

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
  readonly data: { readonly id: string };
}
