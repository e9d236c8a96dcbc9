/**
 * Puts together what this process knows of routes, forecasts and failures, from its own work and from the reports of
 * the other replicas. It must never ask another replica: their reports come with the renewals (`capacity-sharing.ts`).
 */
import type { Batch, BatchId } from "../batch/batch.ts";
import type { CommonFailure, Forecast, Wait, Waiting } from "../batch/forecast.ts";
import { isFinal, maySendLines, stepOf } from "../batch/status.ts";
import type { Clock } from "../clock.ts";
import type { Store } from "../store/store.ts";
import type { Upstreams } from "../upstream/upstream.ts";
import type { CommonFailures } from "./chunks/common-failures.ts";
import type { FleetRoute } from "./dispatch/fleet-routes.ts";
import type { Scheduler } from "./dispatch/scheduler.ts";
import { isUnanswered, UNWRITABLE } from "./dispatch/waiting.ts";
import type { Fleet } from "./fleet/fleet.ts";
import type { CommonSettings, ReplicaReport } from "./fleet/replica-report.ts";
import type { JournalHealth } from "./journal/journal-health.ts";
import type { Stalls } from "./steps/stalls.ts";
import { type StorageWaits, storageWait } from "./steps/storage-waits.ts";

interface FleetViewDeps {
  readonly store: Pick<Store, "findForecasts">;
  readonly clock: Clock;
  readonly upstreams: Upstreams;
  readonly fleet: Fleet;
  /** Whether this process runs batches. */
  readonly isWorker: boolean;
  readonly commonFailures: CommonFailures;
  readonly storageWaits: StorageWaits;
  readonly stalls: Stalls;
  readonly measure: () => ReturnType<Scheduler["measure"]>;
  /** Returns what the other replicas are told of the configuration in force. */
  readonly settings: () => CommonSettings;
  readonly health: Pick<JournalHealth, "isGood" | "writableAtMs">;
}

const NOTHING_EXPECTED = { etaAtMs: null, isAtRisk: false, queuePosition: null, waiting: null };
const NOTHING_KNOWN = { ...NOTHING_EXPECTED, commonFailure: null };

export class FleetView {
  readonly #deps: FleetViewDeps;
  #unwritableSinceMs: number | null = null;

  constructor(deps: FleetViewDeps) {
    this.#deps = deps;
  }

  /** Describes this process for the other replicas. */
  report(): ReplicaReport {
    const { isWorker, upstreams, fleet, measure, health } = this.#deps;
    const { commonFailures, storageWaits, stalls, settings } = this.#deps;
    return {
      isWorker,
      canWrite: health.isGood,
      ...(health.writableAtMs !== undefined && { writableAtMs: health.writableAtMs }),
      targets: upstreams.report(fleet.nowMs),
      routes: [...measure()].map(([key, { throughput, isBusy }]) => ({
        key,
        throughput,
        isBusy,
      })),
      commonFailures: commonFailures.list(),
      storageWaits: storageWaits.list(),
      stalls: stalls.report(),
      common: settings(),
      ...(fleet.reloadAskedAtMs !== undefined && { reloadAskedAtMs: fleet.reloadAskedAtMs }),
    };
  }

  /** Lists the targets of all replicas: of this one as they are now, of the others as of their last renewal. */
  replicas(): readonly Pick<ReplicaReport, "isWorker" | "targets">[] {
    const { isWorker, upstreams, fleet } = this.#deps;
    return [{ isWorker, targets: upstreams.report(fleet.nowMs) }, ...fleet.peers];
  }

  /** Finds the routes of a model at all replicas that run batches. */
  routes(): (model: string) => readonly FleetRoute[] {
    const { isWorker, upstreams, fleet, clock, measure, health } = this.#deps;
    const measured = measure();
    const own = (model: string): FleetRoute[] => {
      const route = isWorker ? upstreams.findRoute(model) : null;
      if (route === null) return [];
      const { throughput = null, isBusy = false } = measured.get(route.key) ?? {};
      const opensInMs = route.opensAtMs - clock.nowMs();
      return [
        {
          key: route.key,
          opensInMs,
          throughput,
          isBusy,
          canWrite: health.isGood,
          unavailabilityFor: (kind) => route.unavailabilityFor(kind),
          endOfWork: (startAtMs, workMs) => route.endOfWork(startAtMs, workMs),
        },
      ];
    };
    return (model) => [
      ...own(model),
      ...fleet.workers.flatMap(({ owner, canWrite, routes }) => {
        const route = upstreams.findPeerRoute(owner, model);
        if (route === null) return [];
        const { throughput = null, isBusy = false } =
          routes.find(({ key }) => key === route.key) ?? {};
        return [{ ...route, throughput, isBusy, canWrite }];
      }),
    ];
  }

  /** Finds the reasons of the chunks without a line under way, at all replicas. A batch has one for each such chunk. */
  stalls(): ReadonlyMap<BatchId, readonly Wait[]> {
    const { stalls, fleet } = this.#deps;
    const all = [...stalls.list(), ...fleet.workers.flatMap((peer) => peer.stalls ?? [])];
    const byBatch = new Map<BatchId, Wait[]>();
    for (const [id, reason, upstreamError] of all) {
      const ofBatch = byBatch.get(id);
      if (ofBatch === undefined) byBatch.set(id, [{ reason, upstreamError }]);
      else ofBatch.push({ reason, upstreamError });
    }
    return byBatch;
  }

  /** Finds the failure that the first lines of a batch have in common; null when they have none. */
  commonFailureOf(batchId: BatchId): CommonFailure | null {
    const own = this.#deps.commonFailures.find(batchId);
    if (own !== null) return own;
    for (const { commonFailures } of this.#deps.fleet.workers) {
      const found = commonFailures.find(([id]) => id === batchId);
      if (found !== undefined) return found[1];
    }
    return null;
  }

  /**
   * Finds what is predicted for these batches. A batch that was created only just now has no forecast. Neither has a
   * final one, but it keeps the failure that its first lines had in common, while this process remembers it.
   */
  async forecastsFor(batches: readonly Batch[]): Promise<ReadonlyMap<BatchId, Forecast>> {
    const open = batches.filter(({ status }) => !isFinal(status));
    const openIds = open.map(({ id }) => id);
    const found = openIds.length === 0 ? [] : await this.#deps.store.findForecasts(openIds);
    const forecasts = new Map<BatchId, Forecast>(found.map((each) => [each.batchId, each]));
    for (const { id } of batches) {
      const commonFailure = this.#deps.commonFailures.find(id);
      if (commonFailure === null) continue;
      forecasts.set(id, { ...(forecasts.get(id) ?? NOTHING_EXPECTED), commonFailure });
    }
    const unwritableSinceMs = this.#noteUnwritable();
    for (const batch of open) {
      const forecast = forecasts.get(batch.id) ?? NOTHING_KNOWN;
      const waiting =
        this.#storageWaitOf(batch) ?? unwritableWaitOf(batch, forecast.waiting, unwritableSinceMs);
      if (waiting === null) continue;
      forecasts.set(batch.id, { ...forecast, etaAtMs: null, isAtRisk: true, waiting });
    }
    return forecasts;
  }

  /** Returns since when no replica can keep answers; null while one can. */
  #noteUnwritable(): number | null {
    const { isWorker, fleet, health } = this.#deps;
    const own = isWorker ? [{ canWrite: health.isGood }] : [];
    const workers = [...own, ...fleet.workers];
    const isUnwritable = workers.length > 0 && !workers.some(({ canWrite }) => canWrite);
    this.#unwritableSinceMs = isUnwritable ? (this.#unwritableSinceMs ?? fleet.nowMs) : null;
    return this.#unwritableSinceMs;
  }

  #storageWaitOf(batch: Batch): Waiting | null {
    const own = this.#deps.storageWaits.find(batch);
    const now = stepOf(batch.status);
    if (own !== null || now === null) return own;
    for (const { storageWaits = [] } of this.#deps.fleet.workers) {
      const found = storageWaits.find(([id, , step = now]) => id === batch.id && step === now);
      if (found !== undefined) return storageWait(found[1]);
    }
    return null;
  }
}

/**
 * The forecasts in the store say so too, unless the store takes no writes: then they are from before, and the answers
 * cannot be kept either.
 */
function unwritableWaitOf(
  batch: Batch,
  waiting: Waiting | null,
  sinceMs: number | null,
): Waiting | null {
  const hasLines = maySendLines(batch.status) && stepOf(batch.status) === null;
  if (sinceMs === null || !hasLines || batch.paused !== null) return null;
  return isUnanswered(waiting) ? waiting : { ...UNWRITABLE, sinceMs };
}
