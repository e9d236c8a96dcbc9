/**
 * Sums up what answers are paid for, by model and price. The cost is not stored: it is calculated from the sums and the
 * price, so it is exact whatever the order in which lines end.
 */
import type { Usage } from "./batch.ts";
import { type Consumption, type Price, priceKey } from "./price.ts";

/** What answers took from one model, at one price, on one day. */
export interface ModelUsage extends Consumption {
  readonly model: string;
  /** The day in UTC at which they went into the journal, as `2026-01-31`. */
  readonly day: string;
  /** It is null while the configuration had no price for the model. */
  readonly price: Price | null;
}

export const dayOf = (atMs: number): string => new Date(atMs).toISOString().slice(0, 10);

/** The month of a day, as `2026-01`. */
export const monthOf = (day: string): string => day.slice(0, 7);

export const addAnswer = (sum: Consumption, usage: Usage): Consumption => ({
  requestCount: sum.requestCount + 1,
  inputTokens: sum.inputTokens + usage.inputTokens,
  cachedTokens: sum.cachedTokens + usage.cachedTokens,
  outputTokens: sum.outputTokens + usage.outputTokens,
});

/**
 * The form in which a row of the store keeps an entry. A segment has it beside the sums, because an unreadable segment
 * takes back what it has added. The keys are the columns of the table `model_usage`. */
export interface StoredModelUsage {
  readonly model: string;
  readonly day: string;
  readonly price: string;
  readonly request_count: number;
  readonly input_tokens: number;
  readonly cached_tokens: number;
  readonly output_tokens: number;
}

export const storedUsage = (entries: readonly ModelUsage[]): StoredModelUsage[] =>
  entries.map(({ model, day, price, ...sum }) => ({
    model,
    day,
    price: priceKey(price),
    request_count: sum.requestCount,
    input_tokens: sum.inputTokens,
    cached_tokens: sum.cachedTokens,
    output_tokens: sum.outputTokens,
  }));
