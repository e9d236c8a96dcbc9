/**
 * Which chunk next, and when. Every open route has a {@link RouteQueue}, at which the batches that have lines for it
 * contend; a chunk is claimed for the batch whose turn it is, and its worker can start at once. Nothing is
 * claimed for a route that takes no lines at the moment: the work stays where any replica can take it. Chunks in
 * memory are bounded by the bytes of their input.
 *
 * What there is to claim is asked of the store once a second, or when something has changed. In between the list may
 * be behind: then a claim comes to nothing, which costs no more than the attempt.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Contender } from "../../batch/fair-queue.ts";
import type { Clock } from "../../clock.ts";
import type { Nudge } from "../../loop.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { Claim } from "../../store/claim.ts";
import type { ClaimedChunk, RunnableChunks, Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Route, Upstreams } from "../../upstream/upstream.ts";
import { type HandOut, RouteQueue } from "./route-queue.ts";
import { ThroughputEstimator } from "./throughput-estimator.ts";

/** How old the list of what can be claimed may be. */
const LIST_EVERY_MS = 1_000;
/** With thousands of batches a list takes tens of milliseconds, in which nothing else is claimed. */
const SLOW_LIST_MS = 10;
/** After a slow list no other is made for so many times as long, unless the list is too old. */
const SLOW_LIST_RESTS = 9;
/** With tens of thousands of batches a list may be older: it takes a quarter of the time at the most. */
const LIST_AGE_FACTOR = 4;

/** What a chunk needs to be worked on. */
export interface ChunkStart {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  /** The route of one of its models, which may have moved since the file was read; null when nothing serves it any more. */
  readonly routeOf: (model: string) => Route | null;
  /** The chunk hands out its lines from now on, until `stop` aborts. */
  readonly handOut: (stop: AbortSignal) => HandOut;
  /** Called for each line that has its outcome. */
  readonly onRecorded: () => void;
}

/** A chunk that is worked on. */
export interface RunningChunk {
  /** Never rejects. Resolves to whether the chunk ended before its time, and has work left. */
  readonly ended: Promise<"done" | "early">;
  /** Its lines are to go another way: it ends when those in flight have ended. */
  reroute(): void;
}

export interface SchedulerDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  readonly log: Log;
  /** Whether the memory for lines is used up. */
  readonly isMemoryFull: () => boolean;
  /** Journals that cannot be written at the moment. */
  readonly failingJournals: ReadonlySet<unknown>;
  readonly isAtRisk: (batchId: BatchId) => boolean;
  /** A bid for a chunk in this process's name. */
  readonly bid: () => Promise<Claim>;
  readonly startChunk: (start: ChunkStart) => RunningChunk;
  /** Wakes this scheduler. */
  readonly nudge: Nudge;
  /** Called when a chunk has ended: its batch may be ready for its files. */
  readonly onChunkEnded: () => void;
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
  /** By the keys of their routes. */
  readonly #meters = new Map<string, ThroughputEstimator>();
  readonly #open = new Map<Promise<void>, OpenChunk>();
  /** Models of waiting chunks that no target serves any more, logged once each. */
  #unserved: ReadonlySet<string> = new Set();
  #listedAtMs = Number.NEGATIVE_INFINITY;
  #listEveryMs = LIST_EVERY_MS;
  /** Something has changed since then. */
  #isListBehind = false;
  /** When it may be made anew because of that. */
  #listRestsUntilMs = Number.NEGATIVE_INFINITY;

  constructor(deps: SchedulerDeps) {
    this.#deps = deps;
  }

  /** Claims one chunk and sets it going; false when nothing can be claimed now. */
  async startNext(): Promise<boolean> {
    const { store, bid, failingJournals, upstreams } = this.#deps;
    // Answers that cannot be kept must not be asked for.
    if (failingJournals.size > 0) return false;
    await this.#listIfDue();
    const choice = this.#choose();
    if (choice === null) return false;
    const { batchId, model } = choice.runnable;
    const claimed = await store.claimChunk({ ...(await bid()), batchId, model });
    // The configuration may have changed since the list was made.
    if (claimed !== null && upstreams.findRoute(model) === choice.queue.route) {
      this.#start(claimed, choice.queue);
      return true;
    }
    choice.queue.forget(choice.runnable);
    if (claimed !== null) await store.releaseChunkIfLeased(claimed.lease);
    return true;
  }

  /** What can be claimed has changed, and not by what happens here. */
  recheck(): void {
    this.#isListBehind = true;
    this.#deps.nudge.now();
  }

  /** Ends the runs whose route is another one now; their chunks go on under that. */
  reroute(): void {
    const { upstreams } = this.#deps;
    for (const { running, routes } of this.#open.values()) {
      const hasMoved = [...routes].some(([model, route]) => upstreams.findRoute(model) !== route);
      if (hasMoved) running.reroute();
    }
    // Whatever it costs: nothing goes by the old list any more.
    this.#listedAtMs = Number.NEGATIVE_INFINITY;
    this.#deps.nudge.now();
  }

  /** The throughput of every route that has had lines since the last call. */
  measure(): ReadonlyMap<string, ThroughputEstimator> {
    const nowMs = this.#deps.clock.elapsedMs();
    const full = new Set<string>();
    for (const queue of this.#queues.values())
      if (queue.route.takeHadToWait()) full.add(queue.route.key);
    for (const [key, meter] of this.#meters) meter.sample(nowMs, full.has(key) ? "full" : "idling");
    return this.#meters;
  }

  /** Resolves when every chunk that was started has ended. */
  async settled(): Promise<void> {
    while (this.#open.size > 0) await Promise.all(this.#open.keys());
  }

  async #listIfDue(): Promise<void> {
    const { store, clock, upstreams, isAtRisk } = this.#deps;
    const startedAtMs = clock.elapsedMs();
    if (!this.#isListDue(startedAtMs)) return;
    // Before the store is asked: what changes meanwhile calls for another look.
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
    for (const [route, queue] of this.#queues) {
      await queue.update(byRoute.get(route) ?? [], isAtRisk);
      if (queue.isIdle) this.#queues.delete(route);
    }
    const endedAtMs = clock.elapsedMs();
    const tookMs = endedAtMs - startedAtMs;
    this.#listEveryMs = Math.max(LIST_EVERY_MS, tookMs * LIST_AGE_FACTOR);
    const restMs = tookMs < SLOW_LIST_MS ? 0 : tookMs * SLOW_LIST_RESTS;
    this.#listRestsUntilMs = endedAtMs + restMs;
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
      if (!this.#unserved.has(model)) this.#deps.log.warn({ model }, "route.unserved");
    }
    this.#unserved = unserved;
  }

  /** A route that takes lines and has the fewest chunks open, so that no route takes the memory of the others. */
  #choose(): { queue: RouteQueue; runnable: RunnableChunks } | null {
    const nowMs = this.#deps.clock.nowMs();
    // One chunk of each project is let through anyway, at each route.
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
    const known = this.#meters.get(key);
    if (known !== undefined) return known;
    const meter = new ThroughputEstimator();
    this.#meters.set(key, meter);
    return meter;
  }

  #start(claimed: ClaimedChunk, queue: RouteQueue): void {
    const { clock, nudge, startChunk, onChunkEnded } = this.#deps;
    const { project } = claimed.batch;
    const { route } = queue;
    const meter = this.#meterOf(route);
    const routes = new Map<string, Route | null>([[claimed.chunk.model, route]]);
    queue.chunkOpened(project);
    meter.begin(clock.elapsedMs());
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
      onRecorded: () => meter.count(),
    });
    const ended = running.ended.then((end) => {
      queue.chunkEnded(project);
      meter.end(clock.elapsedMs());
      this.#open.delete(ended);
      if (end === "done") nudge.now();
      else this.recheck();
      onChunkEnded();
    });
    this.#open.set(ended, { running, routes });
  }
}
