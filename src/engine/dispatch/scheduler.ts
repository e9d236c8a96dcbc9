/**
 * Which chunk next, and when. Every open route has a {@link Desk}, at which the batches that have lines for it
 * contend; a chunk is claimed for the batch whose turn it is, and whoever claims it can start at once. Nothing is
 * claimed for a route that takes no lines at the moment: the work stays where any replica can take it. Chunks in
 * memory are bounded by the bytes of their input.
 *
 * What there is to claim is asked of the store once a second, or when something has changed. In between the list may
 * be behind: then a claim comes to nothing, which costs no more than the attempt.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Clock } from "../../clock.ts";
import type { Nudge } from "../../loop.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { ClaimedChunk, RunnableChunks, Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Route, Upstreams } from "../../upstream/upstream.ts";
import { type ChunkRunnerDeps, runChunk } from "../chunk-runner.ts";
import { isPassing } from "../failure.ts";
import type { Leases, Run } from "../lease.ts";
import type { Contender } from "./fair-queue.ts";
import { Desk } from "./route-queue.ts";
import { ThroughputEstimator } from "./throughput-estimator.ts";

/** How old the list of what can be claimed may be. */
const LIST_EVERY_MS = 1_000;
/** With thousands of batches a list takes tens of milliseconds, in which nothing else is claimed. */
const SLOW_LIST_MS = 10;
/** After a slow list no other is made for so many times as long, unless the list is too old. */
const SLOW_LIST_RESTS = 9;
/** With tens of thousands of batches a list may be older: it takes a quarter of the time at the most. */
const LIST_AGE_FACTOR = 4;

export interface SchedulerDeps extends ChunkRunnerDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  readonly log: Log;
  readonly leases: Leases;
  readonly isAtRisk: (batchId: BatchId) => boolean;
  /** Wakes this scheduler. */
  readonly nudge: Nudge;
  /** Told when a chunk has ended: its batch may be ready for its files. */
  readonly onChunkEnded: () => void;
}

/** A chunk that is open here. */
interface Running {
  readonly claimed: ClaimedChunk;
  readonly desk: Desk;
  readonly run: Run;
  /** The models that its lines have asked for until now, and the route of each. */
  readonly routes: Map<string, Route | null>;
}

const bytesOf = ({ chunk }: ClaimedChunk) =>
  chunk.extents.reduce((sum, { start, end }) => sum + end - start, 0);

const contenderOf = ({ batch }: ClaimedChunk): Contender => ({
  batchId: batch.id,
  project: batch.project,
  priority: batch.priority,
  deadlineAtMs: batch.expiresAtMs,
  createdAtMs: batch.createdAtMs,
});

/** A failure that cannot be counted because the store is away is none of the chunk's own. */
async function countFailure(
  err: unknown,
  { lease }: ClaimedChunk,
  { store, log }: SchedulerDeps,
): Promise<void> {
  if (isPassing(err)) return;
  await store.countChunkFailureIfLeased(lease).catch((cause: unknown) => {
    log.warn({ batch: lease.batchId, chunk: lease.chunkNumber, err: cause }, "failure.not_counted");
  });
}

export class Scheduler {
  readonly #deps: SchedulerDeps;
  readonly #desks = new Map<Route, Desk>();
  /** By the keys of their routes. */
  readonly #meters = new Map<string, ThroughputEstimator>();
  readonly #running = new Map<Promise<void>, Running>();
  /** Models of waiting chunks that no target serves any more, told once each. */
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
    const { store, leases, failingJournals, upstreams } = this.#deps;
    // Answers that cannot be kept must not be asked for.
    if (failingJournals.size > 0) return false;
    await this.#listIfDue();
    const choice = this.#choose();
    if (choice === null) return false;
    const { batchId, model } = choice.runnable;
    const claimed = await store.claimChunk({ ...(await leases.claim()), batchId, model });
    // The configuration may have changed since the list was made.
    if (claimed !== null && upstreams.findRoute(model) === choice.desk.route) {
      this.#start(claimed, choice.desk);
      return true;
    }
    choice.desk.forget(choice.runnable);
    if (claimed !== null) await store.releaseChunkIfLeased(claimed.lease);
    return true;
  }

  /** What can be claimed has changed, and not by what happens here. */
  lookAgain(): void {
    this.#isListBehind = true;
    this.#deps.nudge.now();
  }

  /** Ends the runs whose route is another one now; their chunks go on under that. */
  reroute(): void {
    const { upstreams, clock } = this.#deps;
    for (const { claimed, desk, run, routes } of this.#running.values()) {
      const known = [[claimed.chunk.model, desk.route] as const, ...routes];
      const hasMoved = known.some(([model, route]) => upstreams.findRoute(model) !== route);
      if (hasMoved) run.end("reroute", null, clock);
    }
    // Whatever it costs: nothing goes by the old list any more.
    this.#listedAtMs = Number.NEGATIVE_INFINITY;
    this.#deps.nudge.now();
  }

  /** Of every route that has had lines, since this was asked last. */
  measure(): ReadonlyMap<string, ThroughputEstimator> {
    const nowMs = this.#deps.clock.elapsedMs();
    const full = new Set<string>();
    for (const desk of this.#desks.values()) if (desk.takeHadToWait()) full.add(desk.route.key);
    for (const [key, meter] of this.#meters) meter.sample(nowMs, full.has(key) ? "full" : "idling");
    return this.#meters;
  }

  /** Resolves when every chunk that was started has ended. */
  async settled(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running.keys());
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
    for await (const group of inSlices(await store.listRunnable(clock.nowMs()))) {
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
    this.#tellUnserved(unserved);
    for (const route of byRoute.keys()) this.#deskOf(route);
    for (const [route, desk] of this.#desks) {
      await desk.update(byRoute.get(route) ?? [], isAtRisk);
      if (desk.isIdle) this.#desks.delete(route);
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

  #tellUnserved(unserved: ReadonlySet<string>): void {
    for (const model of unserved) {
      if (!this.#unserved.has(model)) this.#deps.log.warn({ model }, "route.unserved");
    }
    this.#unserved = unserved;
  }

  /** Of the routes that take lines, one with the fewest chunks open: none is to have the memory of the others. */
  #choose(): { desk: Desk; runnable: RunnableChunks } | null {
    const nowMs = this.#deps.clock.nowMs();
    // One chunk of each project is let through anyway, at each route.
    const memory = this.#deps.memory.isFull("lines") ? "full" : "free";
    const desks = [...this.#desks.values()]
      .filter((desk) => desk.route.opensAtMs <= nowMs)
      .sort((a, b) => a.openChunkCount - b.openChunkCount);
    for (const desk of desks) {
      const runnable = desk.next(memory);
      if (runnable !== null) return { desk, runnable };
    }
    return null;
  }

  #deskOf(route: Route): Desk {
    const known = this.#desks.get(route);
    if (known !== undefined) return known;
    const desk = new Desk(route);
    this.#desks.set(route, desk);
    return desk;
  }

  #meterOf({ key }: Route): ThroughputEstimator {
    const known = this.#meters.get(key);
    if (known !== undefined) return known;
    const meter = new ThroughputEstimator();
    this.#meters.set(key, meter);
    return meter;
  }

  #start(claimed: ClaimedChunk, desk: Desk): void {
    const { log, leases, clock, memory } = this.#deps;
    const { batch, chunk, lease } = claimed;
    const fields = { batch: batch.id, chunk: chunk.number, route: desk.route.key };
    log.debug(fields, "chunk.claimed");
    const room = memory.open("lines", batch.project);
    // That memory is full is asked before a chunk is claimed.
    void room.add(bytesOf(claimed));
    desk.chunkOpened(batch.project);
    this.#meterOf(desk.route).begin(clock.elapsedMs());
    const run = leases.holdChunk(lease);
    const parts = { claimed, desk, run, routes: new Map<string, Route | null>() };
    const running = this.#run(parts)
      .catch((err: unknown) => {
        // The lease is left to run out, so a chunk that fails again and again is not tried in a tight loop.
        log.error({ ...fields, err }, "chunk.failed");
        return run.endReason === null ? countFailure(err, claimed, this.#deps) : undefined;
      })
      .finally(() => {
        room.release();
        desk.chunkEnded(batch.project);
        this.#meterOf(desk.route).end(clock.elapsedMs());
        this.#running.delete(running);
        if (run.endReason === null) this.#deps.nudge.now();
        else this.lookAgain();
        this.#deps.onChunkEnded();
      });
    this.#running.set(running, parts);
  }

  async #run({ claimed, desk, run, routes }: Running): Promise<void> {
    const { leases, nudge } = this.#deps;
    const { route } = desk;
    const meter = this.#meterOf(route);
    const { admit, end } = desk.startHandOut(contenderOf(claimed), run.stop);
    const onAllTaken = () => {
      end();
      nudge.now();
    };
    const onRecorded = () => meter.count();
    const routeOf = (model: string) => this.#routeOf(model, routes);
    try {
      await runChunk({ claimed, route, routeOf, run, admit, onAllTaken, onRecorded }, this.#deps);
    } finally {
      leases.dropChunk(claimed.lease);
    }
  }
}
