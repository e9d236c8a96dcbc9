/**
 * The forecasts of the open batches. Only one process uses a SQLite store, so they are in memory: they are made anew
 * once a second.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { BatchForecast, ForecastStore } from "../forecasts.ts";

export function sqliteForecasts(): ForecastStore {
  const forecasts = new Map<BatchId, BatchForecast>();
  const atRisk = new Set<BatchId>();
  return {
    recordForecasts: async (changed, endedIds) => {
      for (const forecast of changed) {
        forecasts.set(forecast.batchId, forecast);
        if (forecast.isAtRisk) atRisk.add(forecast.batchId);
        else atRisk.delete(forecast.batchId);
      }
      for (const id of endedIds) {
        forecasts.delete(id);
        atRisk.delete(id);
      }
    },
    findForecasts: async (ids) =>
      ids.map((id) => forecasts.get(id)).filter((forecast) => forecast !== undefined),
    listForecasts: async () => [...forecasts.values()],
    listBatchesAtRisk: async () => [...atRisk],
  };
}
