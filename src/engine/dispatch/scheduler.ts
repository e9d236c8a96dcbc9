/**
 * Decides which chunk is claimed next, and when. Every open route has a {@link RouteQueue}, in which the batches with
 * lines for it contend. The scheduler claims a chunk for the batch whose turn it is, and starts its run. It must claim
 * nothing for a route that takes no lines at the moment, so that any replica can take the work. The bytes of their
 * input bound the chunks in memory.
 *
 * The store lists the claimable chunks from time to time, or when something has changed. The list may be out of date in
 * between. A claim then finds nothing, which costs no more than the attempt.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Contender } from "../../batch/fair-queue.ts";
import type { Clock } from "../../clock.ts";
import type { Nudge } from "../../loop.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { ClaimedChunk, RunnableChunks } from "../../store/chunks.ts";
import type { Claim } from "../../store/claim.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Route, Upstreams } from "../../upstream/upstream.ts";
import { type HandOut, RouteQueue } from "./route-queue.ts";
import { ThroughputEstimator } from "./throughput-estimator.ts";

/** The age at which the batches at risk are listed again. */
const AT_RISK_EVERY_MS = 1_000;
/** A list that takes longer is slow. With thousands of batches it takes tens of milliseconds, and delays all claims. */
const SLOW_LIST_MS = 10;
/** A slow list is followed by a rest of so many times its length, unless the list is too old. */
const SLOW_LIST_RESTS = 9;
/** The list may become so many times as old as it took to make, so that lists take at most a quarter of the time. */
const LIST_AGE_FACTOR = 4;

/** The most chunks, and about the most lines, that one statement claims: many chunks of small batches, or a few large ones. */
const MAX_CLAIMED_CHUNKS = 16;
const MAX_CLAIMED_LINES = 2_048;
/** The time on the event loop for the choices of one statement. */
const MAX_CHOOSING_MS = 10;

/** Chunks of one batch and model that are to be claimed. */
interface Choice {
  readonly queue: RouteQueue;
  readonly runnable: RunnableChunks;
  /** Ends each reservation. */
  readonly reservations: (() => void)[];
}

const choiceKey = ({ batchId, model }: Pick<RunnableChunks, "batchId" | "model">): string =>
  `${batchId} ${model}`;

/** The parts that a run of a chunk needs. */
export interface ChunkStart {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  /** Finds the route of a model, which may have moved since the file was read; null when no target serves the model. */
  readonly routeOf: (model: string) => Route | null;
  /** Lets the chunk hand out its lines from now on, until `stop` aborts. */
  readonly handOut: (stop: AbortSignal) => HandOut;
  /** The callback for each line that has its outcome. */
  readonly onRecorded: () => void;
}

/** A chunk that is worked on. */
export interface RunningChunk {
  /** Resolves to `early` when the chunk has work left. Never rejects. */
  readonly ended: Promise<"done" | "early">;
  /** Ends the run once the lines in flight have ended: its other lines take another route. */
  reroute(): void;
}

export interface SchedulerDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  readonly log: Log;
  /** Whether the memory for lines is used up. */
  readonly isMemoryFull: () => boolean;
  /** The journals that cannot be written at the moment. */
  readonly failingJournals: ReadonlySet<unknown>;
  /** Returns the weight of a project in fair sharing. */
  readonly projectWeightOf: (project: string) => number;
  /** The age at which the list of claimable chunks is made anew, although nothing is known to have changed. */
  readonly pollEveryMs: number;
  /** Makes a claim in the name of this process. */
  readonly bid: () => Promise<Claim>;
  readonly startChunk: (start: ChunkStart) => RunningChunk;
  /** The signal that wakes this scheduler. */
  readonly nudge: Nudge;
  /** The callback for a chunk that has ended: its batch may be ready for its files, or for its removal. */
  readonly onChunkEnded: (end: "done" | "early") => void;
}

/** A chunk that is open here. */
interface OpenChunk {
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
  /** The models of waiting chunks that no target serves any more, logged once each. */
  #unserved: ReadonlySet<string> = new Set();
  /** The batches that may miss the end of their windows. */
  #atRisk: ReadonlySet<BatchId> = new Set();
  #atRiskListedAtMs = Number.NEGATIVE_INFINITY;
  #listedAtMs = Number.NEGATIVE_INFINITY;
  #listEveryMs = 0;
  /** Whether something has changed since the list was made. */
  #isListBehind = false;
  /** The time from which a change may have the list made anew. */
  #listRestsUntilMs = Number.NEGATIVE_INFINITY;

  constructor(deps: SchedulerDeps) {
    this.#deps = deps;
  }

  /** Claims some chunks and starts their runs; returns false when nothing can be claimed now. */
  async startNext(): Promise<boolean> {
    // Answers that cannot be kept must not be asked for.
    if (this.#deps.failingJournals.size > 0) return false;
    await this.#listIfDue();
    const chosen = this.#chooseSome();
    if (chosen.size === 0) return false;
    for (const { choice, claimed, isAll } of await this.#claim(chosen)) {
      for (const each of claimed) await this.#startOrRelease(each, choice.queue);
      if (!isAll) choice.queue.forget(choice.runnable.batchId);
    }
    return true;
  }

  /** Claims what was chosen in one statement, and resolves to the chunks of each choice. */
  async #claim(chosen: ReadonlyMap<string, Choice>) {
    const { store, bid } = this.#deps;
    const wanted = [...chosen.values()].map(({ runnable, reservations }) => ({
      ...{ batchId: runnable.batchId, model: runnable.model, count: reservations.length },
    }));
    try {
      const claimed = await store.claimChunks({ ...(await bid()), wanted });
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
    this.#isListBehind = true;
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
    this.#listedAtMs = Number.NEGATIVE_INFINITY;
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

  async #listIfDue(): Promise<void> {
    const { store, clock, upstreams, pollEveryMs } = this.#deps;
    const startedAtMs = clock.elapsedMs();
    if (!this.#isListDue(startedAtMs)) return;
    // The time is noted before the store is asked: a change meanwhile calls for another list.
    this.#listedAtMs = startedAtMs;
    this.#isListBehind = false;
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
    for (const route of byRoute.keys()) this.#queueOf(route);
    await this.#listAtRiskIfDue(startedAtMs);
    const standing = {
      isAtRisk: (batchId: BatchId) => this.#atRisk.has(batchId),
      projectWeightOf: this.#deps.projectWeightOf,
    };
    for (const [route, queue] of this.#queues) {
      await queue.update(byRoute.get(route) ?? [], standing);
      if (queue.isIdle) this.#queues.delete(route);
    }
    const endedAtMs = clock.elapsedMs();
    const tookMs = endedAtMs - startedAtMs;
    this.#listEveryMs = Math.max(pollEveryMs, tookMs * LIST_AGE_FACTOR);
    const restMs = tookMs < SLOW_LIST_MS ? 0 : tookMs * SLOW_LIST_RESTS;
    this.#listRestsUntilMs = endedAtMs + restMs;
  }

  async #listAtRiskIfDue(nowMs: number): Promise<void> {
    if (nowMs - this.#atRiskListedAtMs < AT_RISK_EVERY_MS) return;
    this.#atRiskListedAtMs = nowMs;
    this.#atRisk = new Set(await this.#deps.store.listBatchesAtRisk());
  }

  #isListDue(nowMs: number): boolean {
    if (nowMs - this.#listedAtMs >= this.#listEveryMs) return true;
    return this.#isListBehind && nowMs >= this.#listRestsUntilMs;
  }

  #routeOf(model: string, known: Map<string, Route | null>): Route | null {
    const before = known.get(model);
    if (before !== undefined) return before;
    const route = this.#deps.upstreams.findRoute(model);
    if (route === null) this.#deps.log.warn({ model }, "route.unserved");
    known.set(model, route);
    return route;
  }

  #logUnserved(unserved: ReadonlySet<string>): void {
    for (const model of unserved) {
      if (this.#unserved.has(model) || this.#deps.upstreams.isServedElsewhere(model)) continue;
      this.#deps.log.warn({ model }, "route.unserved");
    }
    this.#unserved = unserved;
  }

  /**
   * Chooses chunks for one statement. Each choice is reserved, so that the next one takes it into account as if it were
   * claimed already.
   */
  #chooseSome(): Map<string, Choice> {
    const chosen = new Map<string, Choice>();
    const { clock } = this.#deps;
    const startedAtMs = clock.elapsedMs();
    let chunkCount = 0;
    let lineCount = 0;
    while (chunkCount < MAX_CLAIMED_CHUNKS && lineCount < MAX_CLAIMED_LINES) {
      // The bytes of a chunk are known only after its claim, so a full memory is given one at a time.
      if (chunkCount > 0 && this.#deps.isMemoryFull()) break;
      // With 30,000 open batches a choice takes some milliseconds. The others follow in the next pass.
      if (chunkCount > 0 && clock.elapsedMs() - startedAtMs > MAX_CHOOSING_MS) break;
      const next = this.#choose();
      if (next === null) break;
      const { queue, runnable } = next;
      const end = queue.reserve(runnable);
      const known = chosen.get(choiceKey(runnable));
      if (known === undefined) {
        chosen.set(choiceKey(runnable), { queue, runnable, reservations: [end] });
      } else known.reservations.push(end);
      chunkCount++;
      lineCount += runnable.nextLineCount;
    }
    return chosen;
  }

  /** Chooses the open route with the fewest open chunks, so that no route takes the memory of the others. */
  #choose(): { queue: RouteQueue; runnable: RunnableChunks } | null {
    const nowMs = this.#deps.clock.nowMs();
    // A full memory still admits one chunk of each project at each route.
    const memory = this.#deps.isMemoryFull() ? "full" : "free";
    const queues = [...this.#queues.values()]
      .filter((queue) => queue.route.opensAtMs <= nowMs)
      .sort((a, b) => a.openChunkCount - b.openChunkCount);
    for (const queue of queues) {
      const runnable = queue.next(memory);
      if (runnable !== null) return { queue, runnable };
    }
    return null;
  }

  #queueOf(route: Route): RouteQueue {
    const known = this.#queues.get(route);
    if (known !== undefined) return known;
    const queue = new RouteQueue(route);
    this.#queues.set(route, queue);
    return queue;
  }

  #meterOf({ key }: Route): ThroughputEstimator {
    const known = this.#estimators.get(key);
    if (known !== undefined) return known;
    const estimator = new ThroughputEstimator();
    this.#estimators.set(key, estimator);
    return estimator;
  }

  #start(claimed: ClaimedChunk, queue: RouteQueue): void {
    const { clock, nudge, startChunk, onChunkEnded } = this.#deps;
    const { project } = claimed.batch;
    const { route } = queue;
    const estimator = this.#meterOf(route);
    const routes = new Map<string, Route | null>([[claimed.chunk.model, route]]);
    queue.chunkOpened(project);
    estimator.begin(clock.elapsedMs());
    const running = startChunk({
      claimed,
      route,
      routeOf: (model) => this.#routeOf(model, routes),
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
      onChunkEnded(end);
    });
    this.#open.set(ended, { running, routes });
  }
}
