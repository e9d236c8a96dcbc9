/**
 * Which chunk next, and when. A chunk is claimed only when its route has room and no other chunk of that
 * route is still handing out lines: then whoever claims it can start at once, and the rest of the work stays
 * where any replica can take it. Chunks in memory are bounded as well, by the bytes of their input.
 */
import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import type { Nudge } from "../loop.ts";
import type { ClaimedChunk, Store } from "../store/store.ts";
import type { Route, Upstreams } from "../upstream/upstream.ts";
import { type ChunkRunnerDeps, runChunk } from "./chunk-runner.ts";
import type { Leases } from "./lease.ts";

/** Input lines held in memory by all chunks together. One chunk of each route is always let through. */
const MAX_OPEN_BYTES = 128 * 1024 * 1024;

export interface SchedulerDeps extends ChunkRunnerDeps {
  readonly store: Store;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  readonly log: Log;
  readonly leases: Leases;
  /** Wakes this scheduler. */
  readonly nudge: Nudge;
  /** Told when a chunk has ended: its batch may be ready for its files. */
  readonly onChunkEnded: () => void;
}

const bytesOf = ({ chunk }: ClaimedChunk) =>
  chunk.extents.reduce((sum, { start, end }) => sum + end - start, 0);

export class Scheduler {
  readonly #deps: SchedulerDeps;
  readonly #running = new Set<Promise<void>>();
  /** Routes of which a chunk is still handing out lines. */
  readonly #handingOut = new Set<string>();
  /** Models of waiting chunks that no target serves any more, told once each. */
  readonly #unserved = new Set<string>();
  #openBytes = 0;
  /** How many chunks of each route are open. */
  readonly #openChunkCounts = new Map<string, number>();

  constructor(deps: SchedulerDeps) {
    this.#deps = deps;
  }

  /** Claims one chunk and sets it going; false when nothing can be claimed now. */
  async startNext(): Promise<boolean> {
    const { store, clock, leases, failingJournals } = this.#deps;
    // Answers that cannot be kept must not be asked for.
    if (failingJournals.size > 0) return false;
    const open = await store.listOpenRoutes(clock.nowMs());
    const routes = open.filter((model) => this.#canTake(model));
    if (routes.length === 0) return false;
    const claimed = await store.claimChunk({ ...(await leases.claim()), routes });
    if (claimed === null) return false;
    const route = this.#deps.upstreams.findRoute(claimed.chunk.route);
    if (route === null) throw new Error(`nothing serves ${claimed.chunk.route} any more`);
    this.#start(claimed, route);
    return true;
  }

  /** Resolves when every chunk that was started has ended. */
  async settled(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  #canTake(model: string): boolean {
    const route = this.#deps.upstreams.findRoute(model);
    if (route === null && !this.#unserved.has(model)) {
      this.#unserved.add(model);
      this.#deps.log.warn({ model }, "route.unserved");
    }
    if (route === null || route.room === 0 || this.#handingOut.has(route.key)) return false;
    // A route that is down must not take the room of the others.
    return this.#openBytes < MAX_OPEN_BYTES || !this.#openChunkCounts.has(route.key);
  }

  #start(claimed: ClaimedChunk, route: Route): void {
    const { log } = this.#deps;
    const bytes = bytesOf(claimed);
    const fields = { batch: claimed.batch.id, chunk: claimed.chunk.number, route: route.key };
    log.debug(fields, "chunk.claimed");
    this.#openBytes += bytes;
    this.#countOpen(route, 1);
    this.#handingOut.add(route.key);
    const running = this.#run(claimed, route)
      .catch((err: unknown) => {
        // The lease is left to run out, so a chunk that fails for good is not tried in a tight loop.
        log.error({ ...fields, err }, "chunk.failed");
      })
      .finally(() => {
        this.#openBytes -= bytes;
        this.#countOpen(route, -1);
        this.#running.delete(running);
        this.#deps.nudge.now();
        this.#deps.onChunkEnded();
      });
    this.#running.add(running);
  }

  #countOpen({ key }: Route, change: 1 | -1): void {
    const count = (this.#openChunkCounts.get(key) ?? 0) + change;
    if (count === 0) this.#openChunkCounts.delete(key);
    else this.#openChunkCounts.set(key, count);
  }

  async #run(claimed: ClaimedChunk, route: Route): Promise<void> {
    const { leases, nudge } = this.#deps;
    const run = leases.holdChunk(claimed.lease);
    const onAllTaken = () => {
      this.#handingOut.delete(route.key);
      nudge.now();
    };
    try {
      await runChunk({ claimed, route, run, onAllTaken }, this.#deps);
    } finally {
      leases.dropChunk(claimed.lease);
    }
  }
}
