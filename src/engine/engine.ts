/**
 * Makes batches move. One loop for each step of a batch's life; each looks by itself every so often, and at
 * once when it is nudged. Nothing is kept between passes but what is in flight: whatever a loop needs to
 * know it asks the store, so starting after `kill -9` and starting after SIGTERM are the same.
 */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import type { Batch } from "../batch/batch.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import { type LoopOptions, loop, Nudge } from "../loop.ts";
import type { Announcement } from "../store/deliveries.ts";
import type { Store } from "../store/store.ts";
import type { Upstreams } from "../upstream/upstream.ts";
import { expireDue } from "./expiry.ts";
import { finalizeNext } from "./finalizer.ts";
import { type IntakeLimits, validateNext } from "./intake.ts";
import type { JournalLimits } from "./journal.ts";
import { HEARTBEAT_MS, Leases } from "./lease.ts";
import { Scheduler } from "./scheduler.ts";
import { ORPHAN_SWEEP_EVERY_MS, sweep, sweepOrphans } from "./sweeper.ts";

export interface EngineOptions {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  readonly log: Log;
  readonly limits: IntakeLimits;
  readonly journalLimits: JournalLimits;
  /** For requests in flight of a batch that is cancelled or expires. */
  readonly stopGraceMs: number;
  /** What to tell about a batch: recorded in the commit that makes it final. */
  readonly announcementsFor: (batch: Batch) => Announcement[];
  /** Told when a batch is final. */
  readonly onFinal: () => void;
}

/** How often a loop looks when nobody nudges it. */
const LOOK_EVERY_MS = 1_000;
const SWEEP_EVERY_MS = 60_000;
/** Batches validated, and finalized, side by side: a large one must not hold up the small ones. */
const SIDE_BY_SIDE = 3;

type LoopName = "intake" | "chunks" | "finalize" | "heartbeat" | "expiry" | "sweep" | "orphans";

export class Engine {
  readonly #options: EngineOptions;
  readonly #leases: Leases;
  readonly #scheduler: Scheduler;
  readonly #drain = new AbortController();
  /** Leases are renewed until the last run has ended, however long the grace period is. */
  readonly #settled = new AbortController();
  readonly #nudges: Readonly<Record<LoopName, Nudge>> = {
    intake: new Nudge(),
    chunks: new Nudge(),
    finalize: new Nudge(),
    heartbeat: new Nudge(),
    expiry: new Nudge(),
    sweep: new Nudge(),
    orphans: new Nudge(),
  };
  readonly #loops: Promise<void>[] = [];
  #heartbeat: Promise<void> = Promise.resolve();
  #drained: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    this.#options = options;
    const { store, clock, stopGraceMs } = options;
    const owner = `${hostname()}/${process.pid}/${randomUUID().slice(0, 8)}`;
    this.#leases = new Leases({ store, clock, stopGraceMs, owner });
    this.#scheduler = new Scheduler({
      ...options,
      failingJournals: new Set(),
      leases: this.#leases,
      nudge: this.#nudges.chunks,
      onChunkEnded: () => this.#nudges.finalize.now(),
    });
  }

  start(): void {
    const nudges = this.#nudges;
    const onFinal = () => {
      nudges.sweep.now();
      this.#options.onFinal();
    };
    const deps = { ...this.#options, leases: this.#leases, onFinal };
    const validate = async () => {
      const hasValidated = await validateNext(deps);
      if (hasValidated) this.#nudgeRunning();
      return hasValidated;
    };
    const finalize = () => finalizeNext(deps);
    const onStopping = () => this.#nudgeRunning();
    const expire = () => expireDue({ ...deps, onStopping, onExpired: () => nudges.sweep.now() });
    const renew = async () => {
      await this.#leases.renew();
      return false;
    };
    const drain = this.#drain.signal;
    const run = (name: LoopName, everyMs: number, runOnce: () => Promise<boolean>) =>
      this.#loops.push(this.#loop(name, { everyMs, drain, runOnce }));
    for (let i = 0; i < SIDE_BY_SIDE; i++) {
      run("intake", LOOK_EVERY_MS, validate);
      run("finalize", LOOK_EVERY_MS, finalize);
    }
    run("chunks", LOOK_EVERY_MS, () => this.#scheduler.startNext());
    run("expiry", LOOK_EVERY_MS, expire);
    run("sweep", SWEEP_EVERY_MS, () => sweep(deps));
    run("orphans", ORPHAN_SWEEP_EVERY_MS, () => sweepOrphans(deps));
    const settled = this.#settled.signal;
    this.#heartbeat = this.#loop("heartbeat", {
      everyMs: HEARTBEAT_MS,
      drain: settled,
      runOnce: renew,
    });
  }

  /** Something changed: a batch was created or cancelled, a file was deleted. */
  nudge(): void {
    this.#nudges.intake.now();
    this.#nudges.sweep.now();
    this.#nudgeRunning();
  }

  /** Takes nothing more; what is in flight may end within `graceMs`. Resolves when nothing runs. */
  drain(graceMs: number): Promise<void> {
    this.#drained ??= this.#startDrain(graceMs);
    return this.#drained;
  }

  async #startDrain(graceMs: number): Promise<void> {
    this.#drain.abort();
    this.#leases.drain(graceMs);
    await Promise.all(this.#loops);
    await this.#scheduler.settled();
    this.#settled.abort();
    await this.#heartbeat;
  }

  #nudgeRunning(): void {
    this.#nudges.heartbeat.now();
    this.#nudges.chunks.now();
    this.#nudges.finalize.now();
  }

  #loop(
    name: LoopName,
    options: Pick<LoopOptions, "everyMs" | "drain" | "runOnce">,
  ): Promise<void> {
    const { clock, log } = this.#options;
    return loop({ ...options, name, nudge: this.#nudges[name], clock, log });
  }
}
