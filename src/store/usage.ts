/** The part of the store for what answers are paid for. Segments add to it ({@link SegmentEntry}), in their own commit. */
import type { BatchId } from "../batch/batch.ts";
import type { ModelUsage } from "../batch/model-usage.ts";
import type { Consumption, Price } from "../batch/price.ts";

/** What the answers of a batch took at one price. */
export interface PricedUsage extends Consumption {
  readonly batchId: BatchId;
  readonly price: Price;
}

export interface UsageQuery {
  /** It is null for all projects. */
  readonly project: string | null;
  /** The first day and the last one, as `2026-01-31`. */
  readonly fromDay: string;
  readonly toDay: string;
}

export interface ProjectUsage extends ModelUsage {
  readonly project: string;
}

/** The sums of a page by project, model, day and price. The next one begins after `next`; null at the end. */
export interface UsagePage {
  readonly rows: readonly ProjectUsage[];
  readonly next: UsageCursor | null;
}

/** The place of what was used in the order of days. */
export interface UsageCursor {
  readonly day: string;
  readonly sequence: number;
}

/** The part of the {@link Store} port for usage. It outlives the batches. */
export interface UsageStore {
  /** Sums up each of these batches by price, in the order in which the prices were used. Answers without a price are left out. */
  findPricedUsage(batchIds: readonly BatchId[]): Promise<PricedUsage[]>;
  /** Sums up what was used, some thousand batches at a time: a caller sums up the pages as it wants. */
  listUsage(query: UsageQuery, after: UsageCursor | null): Promise<UsagePage>;
}
