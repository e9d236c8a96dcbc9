/**
 * The claimable chunks by route, as the store lists them from time to time, or when something has changed. With thousands
 * of batches a list takes tens of milliseconds and delays all claims, so lists may take only a part of the time. A list
 * may be out of date: a claim then finds nothing, which costs no more than the attempt.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Clock } from "../../clock.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { RunnableChunks } from "../../store/chunks.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Route, Upstreams } from "../../upstream/upstream.ts";

/** The age at which the batches at risk are listed again. */
const AT_RISK_EVERY_MS = 1_000;
/** A list that takes longer is slow. */
const SLOW_LIST_MS = 10;
/** A slow list is followed by a rest of so many times its length, unless the list is too old. */
const SLOW_LIST_RESTS = 9;
/** The list may become so many times as old as it took to make, so that lists take at most a quarter of the time. */
const LIST_AGE_FACTOR = 4;

export interface RunnableListDeps {
  readonly store: Pick<Store, "listRunnable" | "listBatchesAtRisk">;
  readonly upstreams: Pick<Upstreams, "findRoute" | "isServedElsewhere">;
  readonly clock: Clock;
  readonly log: Log;
  /** The age at which the list is made anew, although nothing is known to have changed. */
  readonly pollEveryMs: number;
}

export interface Listed {
  readonly byRoute: ReadonlyMap<Route, RunnableChunks[]>;
  /** Whether a batch may miss the end of its window. */
  readonly isAtRisk: (batchId: BatchId) => boolean;
}

export class RunnableList {
  readonly #deps: RunnableListDeps;
  /** The models of waiting chunks that no target serves any more, logged once each. */
  #unserved: ReadonlySet<string> = new Set();
  #atRisk: ReadonlySet<BatchId> = new Set();
  #atRiskListedAtMs = Number.NEGATIVE_INFINITY;
  #listedAtMs = Number.NEGATIVE_INFINITY;
  #listEveryMs = 0;
  /** Whether something has changed since the list was made. */
  #isBehind = false;
  /** The time from which a change may have the list made anew. */
  #restsUntilMs = Number.NEGATIVE_INFINITY;

  constructor(deps: RunnableListDeps) {
    this.#deps = deps;
  }

  /** Notes a change in what can be claimed. */
  noteChange(): void {
    this.#isBehind = true;
  }

  /** Has the list made anew at the next call, however slow it is. */
  discard(): void {
    this.#listedAtMs = Number.NEGATIVE_INFINITY;
  }

  /** Makes the list anew when it is due, and hands it to `onListed`, whose time counts too. */
  async refreshIfDue(onListed: (listed: Listed) => Promise<void>): Promise<void> {
    const { clock, pollEveryMs } = this.#deps;
    const startedAtMs = clock.elapsedMs();
    if (!this.#isDue(startedAtMs)) return;
    // The time is noted before the store is asked: a change meanwhile calls for another list.
    this.#listedAtMs = startedAtMs;
    this.#isBehind = false;
    const byRoute = await this.#list();
    await this.#listAtRiskIfDue(startedAtMs);
    await onListed({ byRoute, isAtRisk: (batchId) => this.#atRisk.has(batchId) });
    const endedAtMs = clock.elapsedMs();
    const tookMs = endedAtMs - startedAtMs;
    this.#listEveryMs = Math.max(pollEveryMs, tookMs * LIST_AGE_FACTOR);
    const restMs = tookMs < SLOW_LIST_MS ? 0 : tookMs * SLOW_LIST_RESTS;
    this.#restsUntilMs = endedAtMs + restMs;
  }

  /**
   * Returns the time until a change that was noted can be listed; null when none was. Nothing else wakes the scheduler then:
   * the nudge for the change came during the rest.
   */
  get restMs(): number | null {
    return this.#isBehind ? Math.max(0, this.#restsUntilMs - this.#deps.clock.elapsedMs()) : null;
  }

  #isDue(nowMs: number): boolean {
    if (nowMs - this.#listedAtMs >= this.#listEveryMs) return true;
    return this.#isBehind && nowMs >= this.#restsUntilMs;
  }

  async #list(): Promise<Map<Route, RunnableChunks[]>> {
    const { store, upstreams } = this.#deps;
    const byRoute = new Map<Route, RunnableChunks[]>();
    const unserved = new Set<string>();
    for await (const group of inSlices(await store.listRunnable())) {
      for (const runnable of group) {
        const route = upstreams.findRoute(runnable.model);
        if (route === null) unserved.add(runnable.model);
        else {
          const ofRoute = byRoute.get(route);
          if (ofRoute === undefined) byRoute.set(route, [runnable]);
          else ofRoute.push(runnable);
        }
      }
    }
    this.#logUnserved(unserved);
    return byRoute;
  }

  async #listAtRiskIfDue(nowMs: number): Promise<void> {
    if (nowMs - this.#atRiskListedAtMs < AT_RISK_EVERY_MS) return;
    this.#atRiskListedAtMs = nowMs;
    this.#atRisk = new Set(await this.#deps.store.listBatchesAtRisk());
  }

  #logUnserved(unserved: ReadonlySet<string>): void {
    const { log, upstreams } = this.#deps;
    const nowhere = [...unserved].filter((model) => !upstreams.isServedElsewhere(model));
    for (const model of nowhere) {
      if (!this.#unserved.has(model)) log.warn({ model }, "route.unserved");
    }
    this.#unserved = new Set(nowhere);
  }
}
