/**
 * Keeps the forecasts of the open batches in the store, where every replica reads them. One replica makes them, every second
 * on SQLite and every four on PostgreSQL, from what all replicas report. With thousands of open batches a refresh takes long,
 * so it is done in slices and less often. A forecast must never hold up a request: callers read the latest one.
 */
import { isDeepStrictEqual } from "node:util";
import type { BatchId } from "../../batch/batch.ts";
import type { CommonFailure, Wait, Waiting } from "../../batch/forecast.ts";
import type { Clock } from "../../clock.ts";
import { inSlices, timeForMore } from "../../resources/time-slice.ts";
import type { OpenBatch } from "../../store/batches.ts";
import type { BatchForecast } from "../../store/forecasts.ts";
import type { Store } from "../../store/store.ts";
import { type FleetRoute, outlookOf } from "./fleet-routes.ts";
import { forecastAll, type OpenForecast } from "./forecast.ts";
import { waitOf } from "./waiting.ts";

/** A refresh is followed by a rest of so many times its length, so it takes at most a quarter of the time. */
const REST_FACTOR = 3;
/** The number of forecasts that are stored together. */
const PAGE = 500;

export interface ForecasterDeps {
  readonly store: Store;
  readonly clock: Clock;
  /** Returns the date by the clock of the store, because other replicas have set the deadlines. */
  readonly nowMs: () => number;
  /** Returns the routes of a model at all replicas. It is called anew for each refresh. */
  readonly routes: () => (model: string) => readonly FleetRoute[];
  /** Returns why chunks that are held have no line under way, by their batches. */
  readonly stalls: () => ReadonlyMap<BatchId, readonly Wait[]>;
  /** Returns the weight of a project in fair sharing. */
  readonly projectWeightOf: (project: string) => number;
  /** Returns the failure that the first lines of a batch have in common; null when they have none. */
  readonly commonFailureOf: (batchId: BatchId) => CommonFailure | null;
  /**
   * The part of the time to go, or of the place in the queue, by which a forecast may be wrong before it is stored
   * again. Without one, every refresh would write a row for each open batch.
   */
  readonly tolerance: number;
}

export class Forecaster {
  readonly #deps: ForecasterDeps;
  /** The forecasts in the store; null while they are not known. */
  #stored: Map<BatchId, BatchForecast> | null = null;
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

  /** Reads the store again at the next refresh, because another replica may have changed the forecasts. */
  forget(): void {
    this.#stored = null;
  }

  async refresh(): Promise<void> {
    const { store, routes, stalls, projectWeightOf } = this.#deps;
    const batches = await store.listOpenBatches();
    this.#stored ??= await this.#load();
    const stored = this.#stored;
    const nowMs = this.#deps.nowMs();
    const routesOf = remembered(routes());
    const waiting = await waitingOf(batches, { nowMs, stored, routesOf, stalls: stalls() });
    const outlook = (model: string) => outlookOf(routesOf(model), nowMs);
    const known = { nowMs, waiting, projectWeightOf };
    const forecasts = await forecastAll({ batches, outlookOf: outlook, ...known });
    await this.#record(forecasts, { stored, nowMs });
  }

  async #load(): Promise<Map<BatchId, BatchForecast>> {
    const stored = new Map<BatchId, BatchForecast>();
    for await (const group of inSlices(await this.#deps.store.listForecasts())) {
      for (const forecast of group) stored.set(forecast.batchId, forecast);
    }
    return stored;
  }

  /** Stores what has changed, page by page. */
  async #record(
    forecasts: ReadonlyMap<BatchId, OpenForecast>,
    { stored, nowMs }: { stored: Map<BatchId, BatchForecast>; nowMs: number },
  ): Promise<void> {
    const { commonFailureOf } = this.#deps;
    const changed: BatchForecast[] = [];
    for await (const group of inSlices([...forecasts])) {
      for (const [batchId, { etaAtMs, ...rest }] of group) {
        const commonFailure =
          commonFailureOf(batchId) ?? stored.get(batchId)?.commonFailure ?? null;
        const forecast = { batchId, etaAtMs: wholeMs(etaAtMs), ...rest, commonFailure };
        if (this.#differs(stored.get(batchId), forecast, nowMs)) changed.push(forecast);
      }
    }
    const ended: BatchId[] = [];
    for await (const group of inSlices([...stored.keys()])) {
      for (const id of group) if (!forecasts.has(id)) ended.push(id);
    }
    for (let at = 0; at < Math.max(changed.length, ended.length); at += PAGE) {
      await timeForMore();
      const page = changed.slice(at, at + PAGE);
      const endedIds = ended.slice(at, at + PAGE);
      await this.#deps.store.recordForecasts(page, endedIds);
      for (const forecast of page) stored.set(forecast.batchId, forecast);
      for (const id of endedIds) stored.delete(id);
    }
  }

  #differs(before: BatchForecast | undefined, after: BatchForecast, nowMs: number): boolean {
    if (before === undefined) return true;
    const { etaAtMs: endBefore, queuePosition: placeBefore, ...othersBefore } = before;
    const { etaAtMs: end, queuePosition: place, ...others } = after;
    const isSame = (from: number | null, to: number | null, distance: number) =>
      from === null || to === null
        ? from === to
        : Math.abs(to - from) <= this.#deps.tolerance * Math.max(0, distance);
    if (!isSame(endBefore, end, (end ?? 0) - nowMs)) return true;
    return !isSame(placeBefore, place, place ?? 0) || !isDeepStrictEqual(othersBefore, others);
  }
}

/** Returns null for an end that never comes. */
const wholeMs = (atMs: number | null) =>
  atMs === null || !Number.isFinite(atMs) ? null : Math.floor(atMs);

/** Looks each model up once. */
function remembered(
  routesOf: (model: string) => readonly FleetRoute[],
): (model: string) => readonly FleetRoute[] {
  const known = new Map<string, readonly FleetRoute[]>();
  return (model) => {
    const routes = known.get(model) ?? routesOf(model);
    known.set(model, routes);
    return routes;
  };
}

interface WaitingInput {
  readonly nowMs: number;
  readonly stored: ReadonlyMap<BatchId, BatchForecast>;
  readonly routesOf: (model: string) => readonly FleetRoute[];
  readonly stalls: ReadonlyMap<BatchId, readonly Wait[]>;
}

async function waitingOf(
  batches: readonly OpenBatch[],
  { nowMs, stored, routesOf, stalls }: WaitingInput,
): Promise<Map<BatchId, Waiting>> {
  const waiting = new Map<BatchId, Waiting>();
  for await (const group of inSlices(batches)) {
    for (const batch of group) {
      const wait = waitOf(batch, routesOf, stalls.get(batch.batchId));
      if (wait === null) continue;
      const before = stored.get(batch.batchId)?.waiting;
      const sinceMs = before?.reason === wait.reason ? before.sinceMs : nowMs;
      waiting.set(batch.batchId, { ...wait, sinceMs });
    }
  }
  return waiting;
}
