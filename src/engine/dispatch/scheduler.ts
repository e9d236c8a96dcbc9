/**
 * Claims chunks and starts their runs. Every open route has a {@link RouteQueue}, in which the batches with lines for it
 * contend (`runnable-list.ts` fills it); a chunk is claimed for the batch whose turn it is (`chunk-choice.ts`). The
 * scheduler must claim nothing for a route that takes no lines at the moment, so that any replica can take the work. The
 * bytes of their input bound the chunks in memory.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Contender } from "../../batch/fair-queue.ts";
import type { Nudge } from "../../loop.ts";
import type { ClaimedChunk } from "../../store/chunks.ts";
import type { Claim } from "../../store/claim.ts";
import type { Store } from "../../store/store.ts";
import type { Route, Upstreams } from "../../upstream/upstream.ts";
import { type Choice, type ChoiceDeps, choiceKey, chooseChunks } from "./chunk-choice.ts";
import { RouteQueue } from "./route-queue.ts";
import { type Listed, RunnableList, type RunnableListDeps } from "./runnable-list.ts";
import type { ChunkEnd, ChunkStart, RunningChunk } from "./running-chunk.ts";
import { ThroughputEstimator } from "./throughput-estimator.ts";

export interface SchedulerDeps extends RunnableListDeps, ChoiceDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  /** Resolves to whether answers can be kept. */
  readonly health: { look(): Promise<boolean> };
  /** Returns the weight of a project in fair sharing. */
  readonly projectWeightOf: (project: string) => number;
  /** Returns what a claim of this process names. */
  readonly claim: () => Promise<Claim>;
  readonly startChunk: (start: ChunkStart) => RunningChunk;
  /** The signal that wakes this scheduler. */
  readonly nudge: Nudge;
  /**
   * The callback for a chunk that has ended: its batch may be ready for its files, or for its removal. It is left out
   * for a chunk that is done while others of its batch run here.
   */
  readonly onChunkEnded: (end: ChunkEnd) => void;
}

/** A chunk that is open here. */
interface OpenChunk {
  readonly batchId: BatchId;
  readonly running: RunningChunk;
  /** The models that its lines have asked for until now, and the route of each. */
  readonly routes: ReadonlyMap<string, Route | null>;
}

const contenderOf = ({ batch }: ClaimedChunk): Contender => ({
  batchId: batch.id,
  project: batch.project,
  priority: batch.priority,
  deadlineAtMs: batch.expiresAtMs,
  createdAtMs: batch.createdAtMs,
});

export class Scheduler {
  readonly #deps: SchedulerDeps;
  readonly #queues = new Map<Route, RouteQueue>();
  /** The throughput estimators by the keys of the routes. */
  readonly #estimators = new Map<string, ThroughputEstimator>();
  readonly #open = new Map<Promise<void>, OpenChunk>();
  readonly #list: RunnableList;
  #claiming: Promise<void> | null = null;

  constructor(deps: SchedulerDeps) {
    this.#deps = deps;
    this.#list = new RunnableList(deps);
  }

  /**
   * Claims some chunks and starts their runs. When nothing can be claimed now, it returns false, or the milliseconds until a
   * change that was noted can be looked at.
   */
  async startNext(): Promise<boolean | number> {
    // Answers that cannot be kept must not be asked for.
    if (!(await this.#deps.health.look())) return false;
    await this.#list.refreshIfDue((listed) => this.#updateQueues(listed));
    const chosen = chooseChunks([...this.#queues.values()], this.#deps);
    if (chosen.size === 0) return this.#list.restMs ?? false;
    this.#claiming = this.#claimAndStart(chosen).finally(() => {
      this.#claiming = null;
    });
    await this.#claiming;
    return true;
  }

  /**
   * Resolves once the chunks of the claim under way are held; null while there is none. Such a claim may have chunks of a
   * batch that was paused since, and a renewal of the leases finds only what is held.
   */
  get claiming(): Promise<void> | null {
    return this.#claiming;
  }

  async #claimAndStart(chosen: ReadonlyMap<string, Choice>): Promise<void> {
    for (const { choice, claimed, isAll } of await this.#claim(chosen)) {
      for (const each of claimed) await this.#startOrRelease(each, choice.queue);
      if (!isAll) choice.queue.forget(choice.runnable.batchId);
    }
  }

  /** Claims what was chosen in one statement, and resolves to the chunks of each choice. */
  async #claim(chosen: ReadonlyMap<string, Choice>) {
    const { store, claim } = this.#deps;
    const wanted = [...chosen.values()].map(({ runnable, reservations }) => ({
      batchId: runnable.batchId,
      model: runnable.model,
      count: reservations.length,
    }));
    try {
      const claimed = await store.claimChunks({ ...(await claim()), wanted });
      const byChoice = Map.groupBy(claimed, ({ chunk }) => choiceKey(chunk));
      return [...chosen].map(([key, choice]) => {
        const ofChoice = byChoice.get(key) ?? [];
        return { choice, claimed: ofChoice, isAll: ofChoice.length === choice.reservations.length };
      });
    } finally {
      for (const { reservations } of chosen.values()) for (const end of reservations) end();
    }
  }

  async #startOrRelease(claimed: ClaimedChunk, queue: RouteQueue): Promise<void> {
    const { store, upstreams } = this.#deps;
    // The configuration may have changed since the list was made.
    if (upstreams.findRoute(claimed.chunk.model) === queue.route) {
      this.#start(claimed, queue);
      return;
    }
    queue.forget(claimed.batch.id);
    await store.releaseChunkIfLeased(claimed.lease);
  }

  /** Notes a change from outside in what can be claimed. */
  recheck(): void {
    this.#list.noteChange();
    this.#deps.nudge.now();
  }

  /** Ends the runs whose route has changed. Their chunks go on under the new route. */
  reroute(): void {
    const { upstreams } = this.#deps;
    for (const { running, routes } of this.#open.values()) {
      const hasMoved = [...routes].some(([model, route]) => upstreams.findRoute(model) !== route);
      if (hasMoved) running.reroute();
    }
    // The old routes are no longer valid, so the list is made anew however slow it is.
    this.#list.discard();
    this.#deps.nudge.now();
  }

  /** Returns the throughput of every route that has had lines since the last call. */
  measure(): ReadonlyMap<string, ThroughputEstimator> {
    const nowMs = this.#deps.clock.elapsedMs();
    const full = new Set<string>();
    for (const queue of this.#queues.values())
      if (queue.route.takeHadToWait()) full.add(queue.route.key);
    for (const [key, estimator] of this.#estimators)
      estimator.sample(nowMs, full.has(key) ? "full" : "idling");
    return this.#estimators;
  }

  /** Resolves when every chunk that was started has ended. */
  async settled(): Promise<void> {
    while (this.#open.size > 0) await Promise.all(this.#open.keys());
  }

  async #updateQueues({ byRoute, isAtRisk }: Listed): Promise<void> {
    const { projectWeightOf } = this.#deps;
    for (const route of byRoute.keys()) this.#queueOf(route);
    for (const [route, queue] of this.#queues) {
      await queue.update(byRoute.get(route) ?? [], { isAtRisk, projectWeightOf });
      if (queue.isIdle) this.#queues.delete(route);
    }
  }

  #routeOf(model: string, known: Map<string, Route | null>): Route | null {
    const before = known.get(model);
    if (before !== undefined) return before;
    const route = this.#deps.upstreams.findRoute(model);
    if (route === null) this.#deps.log.warn({ model }, "route.unserved");
    known.set(model, route);
    return route;
  }

  #queueOf(route: Route): RouteQueue {
    const known = this.#queues.get(route);
    if (known !== undefined) return known;
    const queue = new RouteQueue(route);
    this.#queues.set(route, queue);
    return queue;
  }

  #estimatorOf({ key }: Route): ThroughputEstimator {
    const known = this.#estimators.get(key);
    if (known !== undefined) return known;
    const estimator = new ThroughputEstimator();
    this.#estimators.set(key, estimator);
    return estimator;
  }

  #start(claimed: ClaimedChunk, queue: RouteQueue): void {
    const { clock, nudge, upstreams, startChunk, onChunkEnded } = this.#deps;
    const { project, id: batchId } = claimed.batch;
    const { route } = queue;
    const estimator = this.#estimatorOf(route);
    const routes = new Map<string, Route | null>([[claimed.chunk.model, route]]);
    queue.chunkOpened(project);
    estimator.begin(clock.elapsedMs());
    const running = startChunk({
      claimed,
      route,
      routeOf: (model) => this.#routeOf(model, routes),
      isServedElsewhere: (model) => upstreams.isServedElsewhere(model),
      handOut: (stop) =>
        queue.startHandOut(contenderOf(claimed), {
          chunk: claimed.chunk,
          stop,
          onRoom: () => nudge.now(),
        }),
      onRecorded: () => estimator.count(),
    });
    const ended = running.ended.then((end) => {
      queue.chunkEnded(project);
      estimator.end(clock.elapsedMs());
      this.#open.delete(ended);
      if (end === "done") nudge.now();
      else this.recheck();
      if (end !== "done" || !this.#runs(batchId)) onChunkEnded(end);
    });
    this.#open.set(ended, { batchId, running, routes });
  }

  /** Returns whether a chunk of this batch is open here. */
  #runs(batchId: BatchId): boolean {
    for (const open of this.#open.values()) if (open.batchId === batchId) return true;
    return false;
  }
}
