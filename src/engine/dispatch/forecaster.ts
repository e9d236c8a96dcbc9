/**
 * Keeps the forecasts of the open batches. They are made anew about once a second, and not for each request that asks.
 * With thousands of open batches a refresh takes long, so it is done in slices and less often. A forecast must never
 * hold up a request: callers read the latest one.
 */
import type { Batch, BatchId } from "../../batch/batch.ts";
import type { CommonFailure, Forecast, Waiting } from "../../batch/forecast.ts";
import { isFinal } from "../../batch/status.ts";
import type { Clock } from "../../clock.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { OpenBatch } from "../../store/batches.ts";
import type { Store } from "../../store/store.ts";
import type { Upstreams } from "../../upstream/upstream.ts";
import { forecastAll, type OpenForecast } from "./forecast.ts";
import type { ThroughputEstimator } from "./throughput-estimator.ts";
import { waitOf } from "./waiting.ts";

/** A refresh is followed by a rest of so many times its length, so it takes at most a quarter of the time. */
const REST_FACTOR = 3;

const NOTHING_EXPECTED: OpenForecast = {
  etaAtMs: null,
  isAtRisk: false,
  queuePosition: null,
  waiting: null,
};

export interface ForecasterDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  /** Returns the measured throughputs by the keys of the routes. */
  readonly measure: () => ReadonlyMap<string, ThroughputEstimator>;
  /** The journals that cannot be written at the moment. */
  readonly failingJournals: ReadonlySet<unknown>;
  /** Returns the failure that the first lines of a batch have in common; null when they have none. */
  readonly commonFailureOf: (batchId: BatchId) => CommonFailure | null;
}

export class Forecaster {
  readonly #deps: ForecasterDeps;
  #forecasts: ReadonlyMap<BatchId, OpenForecast> = new Map();
  #waiting: ReadonlyMap<BatchId, Waiting> = new Map();
  #restsUntilMs = Number.NEGATIVE_INFINITY;

  constructor(deps: ForecasterDeps) {
    this.#deps = deps;
  }

  async refreshIfDue(): Promise<void> {
    const { clock } = this.#deps;
    const startedAtMs = clock.elapsedMs();
    if (startedAtMs < this.#restsUntilMs) return;
    await this.refresh();
    const endedAtMs = clock.elapsedMs();
    this.#restsUntilMs = endedAtMs + (endedAtMs - startedAtMs) * REST_FACTOR;
  }

  async refresh(): Promise<void> {
    const { store, upstreams, clock, measure } = this.#deps;
    const batches = await store.listOpenBatches();
    const meters = measure();
    const outlookOf = (model: string) => {
      const route = upstreams.findRoute(model);
      if (route === null) return null;
      const { key, opensAtMs } = route;
      return { key, opensAtMs, throughput: meters.get(key)?.throughput ?? null, route };
    };
    const nowMs = clock.nowMs();
    const waiting = await this.#waitingOf(batches, nowMs);
    this.#forecasts = await forecastAll({ batches, outlookOf, nowMs, waiting });
    this.#waiting = waiting;
  }

  async #waitingOf(batches: readonly OpenBatch[], nowMs: number): Promise<Map<BatchId, Waiting>> {
    const { upstreams, failingJournals } = this.#deps;
    const surroundings = { upstreams, canWrite: failingJournals.size === 0 };
    const waiting = new Map<BatchId, Waiting>();
    for await (const group of inSlices(batches)) {
      for (const batch of group) {
        const wait = waitOf(batch, surroundings);
        if (wait === null) continue;
        const before = this.#waiting.get(batch.batchId);
        const sinceMs = before?.reason === wait.reason ? before.sinceMs : nowMs;
        waiting.set(batch.batchId, { ...wait, sinceMs });
      }
    }
    return waiting;
  }

  /** Returns null for an unknown batch. A final batch has no forecast, but it keeps its common failure. */
  forecastFor({ id, status }: Batch): Forecast | null {
    const commonFailure = this.#deps.commonFailureOf(id);
    const open = isFinal(status) ? null : (this.#forecasts.get(id) ?? null);
    if (open === null && commonFailure === null) return null;
    return { ...(open ?? NOTHING_EXPECTED), commonFailure };
  }

  isAtRisk(batchId: BatchId): boolean {
    return this.#forecasts.get(batchId)?.isAtRisk ?? false;
  }
}
