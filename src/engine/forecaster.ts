/** Keeps the forecasts of the open batches, made anew about once a second and not for each who asks. */
import type { Batch, BatchId } from "../batch/batch.ts";
import type { Forecast } from "../batch/forecast.ts";
import { isFinal } from "../batch/status.ts";
import type { Clock } from "../clock.ts";
import type { Store } from "../store/store.ts";
import type { Upstreams } from "../upstream/upstream.ts";
import { forecastAll } from "./forecast.ts";
import type { Meter } from "./meter.ts";

export interface ForecasterDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  /** What the routes have done until now, by their keys. */
  readonly measure: () => ReadonlyMap<string, Meter>;
}

export class Forecaster {
  readonly #deps: ForecasterDeps;
  #forecasts: ReadonlyMap<BatchId, Forecast> = new Map();

  constructor(deps: ForecasterDeps) {
    this.#deps = deps;
  }

  async refresh(): Promise<void> {
    const { store, upstreams, clock, measure } = this.#deps;
    const batches = await store.listOpenBatches();
    const meters = measure();
    const outlookOf = (model: string) => {
      const route = upstreams.findRoute(model);
      if (route === null) return null;
      const { key, opensAtMs } = route;
      return { key, opensAtMs, throughput: meters.get(key)?.throughput ?? null };
    };
    this.#forecasts = forecastAll({ batches, outlookOf, nowMs: clock.nowMs() });
  }

  /** Null when the batch is final, or nothing is known of it yet. */
  forecastFor({ id, status }: Batch): Forecast | null {
    return isFinal(status) ? null : (this.#forecasts.get(id) ?? null);
  }

  isAtRisk(batchId: BatchId): boolean {
    return this.#forecasts.get(batchId)?.isAtRisk ?? false;
  }
}
