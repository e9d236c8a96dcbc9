/** The part of the store for forecasts: one replica makes them for all open batches, and every replica reads them. */
import type { BatchId } from "../batch/batch.ts";
import type { Forecast } from "../batch/forecast.ts";

export interface BatchForecast extends Forecast {
  readonly batchId: BatchId;
}

export interface ForecastStore {
  /** Replaces the forecasts of these batches, and forgets those of batches that have ended. */
  recordForecasts(forecasts: readonly BatchForecast[], endedIds: readonly BatchId[]): Promise<void>;
  /** Finds the forecasts of these batches, in any order. A batch without one is left out. */
  findForecasts(ids: readonly BatchId[]): Promise<BatchForecast[]>;
  listForecasts(): Promise<BatchForecast[]>;
  /** Lists the batches that may miss the end of their windows. */
  listBatchesAtRisk(): Promise<BatchId[]>;
}
