/**
 * Makes batches move. One loop serves each step of a batch's life. Each looks for work every so often, and at once
 * when it is nudged.
 *
 * The loops keep only the work in flight between passes and ask the store for everything else. A start after `kill
 * -9` is therefore the same as a start after SIGTERM.
 */

import type { Batch, BatchId } from "../batch/batch.ts";
import type { LinePage, LineQuery } from "../batch/batch-line.ts";
import type { FinishedLine, FinishedLinesQuery } from "../batch/finished-line.ts";
import type { Forecast } from "../batch/forecast.ts";
import type { PriceRule } from "../batch/price.ts";
import type { RulesOf } from "../batch/project.ts";
import type { BlobIntents } from "../blobs/blob-intents.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import { type LoopOptions, loop, Nudge } from "../loop.ts";
import type { MemoryBudget } from "../resources/memory-budget.ts";
import type { Announcement } from "../store/deliveries.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Upstreams } from "../upstream/upstream.ts";
import { startChunk } from "./chunk-start.ts";
import { CommonFailures } from "./common-failures.ts";
import { Forecaster } from "./dispatch/forecaster.ts";
import { Scheduler } from "./dispatch/scheduler.ts";
import { expireDue } from "./expiry.ts";
import { claimToFinalize } from "./finalizer.ts";
import { finishedLines } from "./finished-lines.ts";
import type { Fleet } from "./fleet.ts";
import { FleetView } from "./fleet-view.ts";
import type { IntakeLimits } from "./input-reading.ts";
import { claimToValidate } from "./intake.ts";
import type { Journal, JournalLimits } from "./journal.ts";
import { Leases } from "./lease.ts";
import { readLinePage } from "./line-page.ts";
import type { Pricing } from "./pricing.ts";
import { purgeProjects } from "./purging.ts";
import { endQuotaPauses } from "./quota-pauses.ts";
import type { ReplicaReport } from "./replica-report.ts";
import { SideBySide, type Work } from "./side-by-side.ts";
import { ORPHAN_SWEEP_EVERY_MS, sweep, sweepOrphans } from "./sweeper.ts";

export interface EngineOptions {
  /** The name of this process, which no other has. */
  readonly owner: string;
  readonly store: Store;
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  readonly upstreams: Upstreams;
  /** Whether this process runs batches. */
  readonly isWorker: boolean;
  /** The part of the time to go by which a stored forecast may be wrong. */
  readonly forecastTolerance: number;
  /** What this process knows of the other replicas. */
  readonly fleet: Fleet;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  readonly limits: () => IntakeLimits;
  /** The model for lines without one, when their batch has no default of its own. */
  readonly defaultModel: () => string | null;
  /** Returns the rules for a project; they are read anew for each batch. */
  readonly rulesOf: RulesOf;
  /** Returns the projects whose data is to be removed. */
  readonly deletedProjects: () => readonly string[];
  readonly journalLimits: JournalLimits;
  readonly pricing: Pricing;
  /** Returns the prices that are configured now. */
  readonly prices: () => readonly PriceRule[];
  readonly memory: MemoryBudget;
  /** The time that requests in flight of a cancelled or expired batch may still take. */
  readonly stopGraceMs: number;
  readonly leaseTtlMs: number;
  /** The announcements of a batch, recorded in the commit that makes it final. */
  readonly announcementsFor: (batch: Batch) => Announcement[];
  /** The callback for a batch that is final. */
  readonly onFinal: () => void;
  /** The time after which work is looked for without a nudge. */
  readonly pollEveryMs: number;
}

const SWEEP_EVERY_MS = 60_000;
/**
 * The number of batches validated, and of batches finalized, side by side: a large one must not hold up the small
 * ones.
 */
const SIDE_BY_SIDE = 3;

const HOUSEKEEPING = ["forecast", "expiry", "sweep", "purge", "orphans"] as const;
type Housekeeping = (typeof HOUSEKEEPING)[number];
type LoopName = "intake" | "chunks" | "finalize" | "heartbeat" | Housekeeping;

export class Engine {
  readonly #options: EngineOptions;
  readonly #leases: Leases;
  readonly #scheduler: Scheduler;
  readonly #forecaster: Forecaster;
  readonly #view: FleetView;
  readonly #failingJournals = new Set<Journal>();
  readonly #drain = new AbortController();
  /** Leases and intents are renewed until nothing needs them, however long the grace period is. */
  readonly #closing = new AbortController();
  readonly #nudges: Readonly<Record<LoopName, Nudge>> = {
    intake: new Nudge(),
    chunks: new Nudge(),
    finalize: new Nudge(),
    heartbeat: new Nudge(),
    forecast: new Nudge(),
    expiry: new Nudge(),
    sweep: new Nudge(),
    purge: new Nudge(),
    orphans: new Nudge(),
  };
  readonly #loops: Promise<void>[] = [];
  readonly #sideBySides: SideBySide[] = [];
  #heartbeat: Promise<void> = Promise.resolve();
  #drained: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    this.#options = options;
    const { store, clock, metrics, stopGraceMs, leaseTtlMs, owner } = options;
    const commonFailures = new CommonFailures(options.log);
    this.#leases = new Leases({ store, clock, metrics, stopGraceMs, leaseTtlMs, owner });
    const runnerDeps = {
      ...options,
      failingJournals: this.#failingJournals,
      commonFailures,
      leases: this.#leases,
    };
    const projectWeightOf = (project: string) => options.rulesOf(project).weight;
    this.#scheduler = new Scheduler({
      ...options,
      projectWeightOf,
      failingJournals: this.#failingJournals,
      isMemoryFull: () => options.memory.isFull("lines"),
      bid: () => this.#leases.claim(),
      startChunk: (start) => startChunk(start, runnerDeps),
      nudge: this.#nudges.chunks,
      onChunkEnded: (end) => {
        this.#nudges.finalize.now();
        // A deleted batch is removed once its last chunk is closed.
        if (end === "early") this.#nudges.sweep.now();
      },
    });
    this.#view = new FleetView({
      ...options,
      commonFailures,
      measure: () => this.#scheduler.measure(),
      canKeepAnswers: () => this.canKeepAnswers,
    });
    this.#forecaster = new Forecaster({
      ...options,
      nowMs: () => options.fleet.nowMs,
      routes: () => this.#view.routes(),
      projectWeightOf,
      commonFailureOf: (batchId) => this.#view.commonFailureOf(batchId),
      tolerance: options.forecastTolerance,
    });
  }

  /** Starts the loops of a worker. */
  start(): void {
    this.startWithoutWork();
    const onReopened = () => this.#scheduler.recheck();
    const deps = { ...this.#options, leases: this.#leases, onFinal: this.#onFinal, onReopened };
    const turn = { project: "" };
    const { pollEveryMs } = this.#options;
    const validations = this.#sideBySide("intake", async () => {
      const validate = await claimToValidate({ ...deps, turn });
      return validate && (() => validate().finally(() => this.#scheduler.recheck()));
    });
    const finalizations = this.#sideBySide("finalize", () => claimToFinalize(deps));
    this.#run("intake", pollEveryMs, () => validations.startNext());
    this.#run("finalize", pollEveryMs, () => finalizations.startNext());
    this.#run("chunks", pollEveryMs, () => this.#scheduler.startNext());
  }

  /** Starts the loops of a process that only serves the API: the renewal of its leases, and the housekeeping. */
  startWithoutWork(): void {
    const { pollEveryMs } = this.#options;
    this.#startHeartbeat();
    const nudges = this.#nudges;
    const deps = { ...this.#options, leases: this.#leases };
    const onStopping = () => this.nudgeStopping();
    const expire = () => expireDue({ ...deps, onStopping, onExpired: () => nudges.sweep.now() });
    const onResumed = () => this.#scheduler.recheck();
    const resume = () => endQuotaPauses({ ...deps, onResumed }, this.#options.fleet.nowMs);
    const forecast = async () => {
      await this.#forecaster.refreshIfDue();
      return false;
    };
    this.#keepHouse("forecast", pollEveryMs, forecast);
    this.#keepHouse("expiry", pollEveryMs, async () => (await resume()) || expire());
    this.#keepHouse("sweep", SWEEP_EVERY_MS, () => sweep(deps));
    this.#keepHouse("purge", pollEveryMs, () =>
      purgeProjects(this.#options.deletedProjects(), deps),
    );
    this.#keepHouse("orphans", ORPHAN_SWEEP_EVERY_MS, () => sweepOrphans(deps));
    this.#options.fleet.onDuty(() => {
      this.#forecaster.forget();
      for (const name of HOUSEKEEPING) nudges[name].now();
    });
  }

  readonly #onFinal = (): void => {
    this.#nudges.sweep.now();
    this.#options.onFinal();
  };

  /** Renews leases, and the intents of uploads. */
  #startHeartbeat(): void {
    const { intents } = this.#options;
    const renew = async () => {
      await this.#leases.renew();
      await intents.renew();
      return false;
    };
    const everyMs = this.#leases.heartbeatMs;
    const drain = this.#closing.signal;
    this.#heartbeat = this.#loop("heartbeat", { everyMs, drain, runOnce: renew });
  }

  #run(name: LoopName, everyMs: number, runOnce: () => Promise<boolean>): void {
    this.#loops.push(this.#loop(name, { everyMs, drain: this.#drain.signal, runOnce }));
  }

  /** Repeats work that one replica does for all, while it is the duty of this one. */
  #keepHouse(name: Housekeeping, everyMs: number, runOnce: () => Promise<boolean>): void {
    const { fleet } = this.#options;
    this.#run(name, everyMs, async () => fleet.isHousekeeper && runOnce());
  }

  renewLeasesIfLate(): Promise<void> {
    return this.#leases.renewIfLate();
  }

  /** Reports new work: a batch was created, or a file was deleted. */
  nudge(): void {
    this.#nudges.intake.now();
    this.#nudges.sweep.now();
  }

  /** Reports chunks that another process has made, or that may be claimed again. */
  nudgeChunks(): void {
    this.#scheduler.recheck();
  }

  /**
   * Reports a batch that is to stop or was paused elsewhere. Its runs learn of it when the leases are renewed, which is too much work for
   * each new batch.
   */
  nudgeStopping(): void {
    this.#nudges.heartbeat.now();
    this.#scheduler.recheck();
    this.#nudges.expiry.now();
    this.#nudges.finalize.now();
    this.#nudges.sweep.now();
  }

  /**
   * Ends the runs of paused batches in this process. Resolves once they send nothing new. Runs of other processes learn
   * of a pause by a nudge, or from their heartbeat.
   */
  async pauseRuns(): Promise<void> {
    // The heartbeat logs a failure when it tries again.
    await this.#leases.renew().catch(() => this.#nudges.heartbeat.now());
    this.#scheduler.recheck();
  }

  /** Yields the lines of a batch that have ended so far, in the order of the input. */
  finishedLines(batch: Batch, query: FinishedLinesQuery): AsyncGenerator<FinishedLine> {
    return finishedLines(batch, query, this.#options);
  }

  /** Reads a page of the lines of a batch, each with its question and its answer. */
  readLinePage(batch: Batch, query: LineQuery): Promise<LinePage> {
    return readLinePage(batch, query, this.#options);
  }

  /** Whether answers can be kept. Lines must not be sent while they cannot. */
  get canKeepAnswers(): boolean {
    return this.#failingJournals.size === 0;
  }

  /** Reports that the routes may have changed: lines that have not gone out yet follow the new ones. */
  reroute(): void {
    this.#scheduler.reroute();
  }

  /** Describes this process for the other replicas. */
  report(): ReplicaReport {
    return this.#view.report();
  }

  /** Finds what is predicted for these batches. */
  forecastsFor(batches: readonly Batch[]): Promise<ReadonlyMap<BatchId, Forecast>> {
    return this.#view.forecastsFor(batches);
  }

  get isDraining(): boolean {
    return this.#drain.signal.aborted;
  }

  /** Takes no new work; requests in flight may end within `graceMs`. Resolves when nothing runs. */
  drain(graceMs: number): Promise<void> {
    this.#drained ??= this.#startDrain(graceMs);
    return this.#drained;
  }

  /** Ends the renewals. The engine must be drained, and no upload may be under way. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#heartbeat;
  }

  async #startDrain(graceMs: number): Promise<void> {
    this.#drain.abort();
    this.#leases.drain(graceMs);
    await Promise.all(this.#loops);
    await Promise.all(this.#sideBySides.map((each) => each.settled()));
    await this.#scheduler.settled();
  }

  #sideBySide(name: "intake" | "finalize", claim: () => Promise<Work | null>): SideBySide {
    const { log } = this.#options;
    const onFailed = (err: unknown) => log.error({ loop: name, err }, "loop.pass_failed");
    const works = new SideBySide({
      ...{ limit: SIDE_BY_SIDE, claim, onFailed },
      nudge: this.#nudges[name],
    });
    this.#sideBySides.push(works);
    return works;
  }

  #loop(
    name: LoopName,
    options: Pick<LoopOptions, "everyMs" | "drain" | "runOnce">,
  ): Promise<void> {
    const { clock, log } = this.#options;
    return loop({ ...options, name, nudge: this.#nudges[name], clock, log });
  }
}
