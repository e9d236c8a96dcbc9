/**
 * Makes batches move, and is the only door to this folder for the rest of the server. One loop serves each step of a
 * batch's life. The loops keep only the work in flight between passes and ask the store for everything else. A start
 * after `kill -9` is therefore the same as a start after SIGTERM.
 */

import type { Batch } from "../batch/batch.ts";
import type { LinePage, LineQuery } from "../batch/batch-line.ts";
import type { FinishedLinesQuery, PassedLine } from "../batch/finished-line.ts";
import type { BlobIntents } from "../blobs/blob-intents.ts";
import { startChunk } from "./chunks/chunk-start.ts";
import { CommonFailures } from "./chunks/common-failures.ts";
import { claimToDerive } from "./deriving/deriving.ts";
import { Forecaster } from "./dispatch/forecaster.ts";
import { Scheduler } from "./dispatch/scheduler.ts";
import type { Fleet } from "./fleet/fleet.ts";
import { FleetView } from "./fleet-view.ts";
import { type Housekeeping, startHousekeeping } from "./housekeeping/housekeeping.ts";
import { claimToValidate, type IntakeDeps } from "./intake/intake.ts";
import type { JournalLimits } from "./journal/journal.ts";
import { JournalHealth } from "./journal/journal-health.ts";
import type { Pricing } from "./journal/pricing.ts";
import { ProgressSampler } from "./progress-sampler.ts";
import { claimToFinalize, type FinalizerDeps } from "./results/finalizer.ts";
import { passedLines } from "./results/finished-lines.ts";
import { readLinePage } from "./results/line-page.ts";
import { Leases } from "./steps/lease.ts";
import { Loops } from "./steps/loops.ts";
import type { SideBySideOptions } from "./steps/side-by-side.ts";
import { Stalls } from "./steps/stalls.ts";
import { StorageWaits } from "./steps/storage-waits.ts";

/** What the steps of batches need of other folders, and what the loops need beside it. */
export interface EngineOptions
  extends Omit<IntakeDeps, "leases" | "storageWaits">,
    Pick<FinalizerDeps, "maxDuplicateBytes"> {
  /** The name of this process, which no other has. */
  readonly owner: string;
  readonly intents: BlobIntents;
  /** Whether this process runs batches. */
  readonly isWorker: boolean;
  /** The part of the time to go by which a stored forecast may be wrong. */
  readonly forecastTolerance: number;
  /** What this process knows of the other replicas. */
  readonly fleet: Fleet;
  /** Returns the projects whose data is to be removed. */
  readonly deletedProjects: () => readonly string[];
  readonly journalLimits: JournalLimits;
  readonly pricing: Pricing;
  /** The time that requests in flight of a cancelled or expired batch may still take. */
  readonly stopGraceMs: number;
  readonly leaseTtlMs: number;
  /** The time after which work is looked for without a nudge. */
  readonly pollEveryMs: number;
}

/** A journal that this process alone cannot write is tried for so many times the length of a lease. */
const PATIENCE_IN_TTL = 2;

/** The loops that move batches. */
type Step = "derive" | "intake" | "chunks" | "finalize" | "progress";

export class Engine {
  readonly #options: EngineOptions;
  readonly #leases: Leases;
  readonly #scheduler: Scheduler;
  readonly #forecaster: Forecaster;
  /** What this process knows of the fleet. */
  readonly view: FleetView;
  readonly #health: JournalHealth;
  readonly #storageWaits: StorageWaits;
  readonly #loops: Loops<Step | Housekeeping>;
  /** Leases and intents are renewed until nothing needs them, however long the grace period is. */
  readonly #renewals: Loops<"heartbeat">;
  #drained: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    this.#options = options;
    this.#loops = new Loops(options);
    this.#renewals = new Loops(options);
    const { store, clock, metrics, stopGraceMs, leaseTtlMs, owner } = options;
    const commonFailures = new CommonFailures(options);
    const stalls = new Stalls(options);
    this.#storageWaits = new StorageWaits(() => options.fleet.nowMs);
    this.#leases = new Leases({ store, clock, metrics, stopGraceMs, leaseTtlMs, owner });
    const patienceMs = PATIENCE_IN_TTL * leaseTtlMs;
    this.#health = new JournalHealth({ ...options, patienceMs });
    const runnerDeps = {
      ...options,
      health: this.#health,
      commonFailures,
      stalls,
      leases: this.#leases,
    };
    const projectWeightOf = (project: string) => options.rulesOf(project).weight;
    // Only leases go by the date of this machine, which shows a pause of it.
    const onStoreTime = { ...options, clock: options.fleet.storeClock };
    this.#scheduler = new Scheduler({
      ...onStoreTime,
      projectWeightOf,
      health: this.#health,
      isMemoryFull: () => options.memory.isFull("lines"),
      claim: () => this.#leases.claim(),
      startChunk: (start) => startChunk(start, runnerDeps),
      nudge: this.#loops.nudgeOf("chunks"),
      onChunkEnded: (end) => {
        this.#loops.nudge("finalize");
        // A deleted batch is removed once its last chunk is closed. The sweep may be the work of another process.
        if (end !== "done") this.#loops.nudge("sweep");
        if (end === "stopped") void options.store.nudgeStopping().catch(() => {});
      },
    });
    this.view = new FleetView({
      ...onStoreTime,
      commonFailures,
      storageWaits: this.#storageWaits,
      stalls,
      measure: () => this.#scheduler.measure(),
      health: this.#health,
    });
    this.#forecaster = new Forecaster({
      ...options,
      nowMs: () => options.fleet.nowMs,
      routes: () => this.view.routes(),
      stalls: () => this.view.stalls(),
      projectWeightOf,
      commonFailureOf: (batchId) => this.view.commonFailureOf(batchId),
      tolerance: options.forecastTolerance,
    });
  }

  /** Starts the loops of a worker. */
  start(): void {
    this.startWithoutWork();
    const onReopened = () => this.#scheduler.recheck();
    const storageWaits = this.#storageWaits;
    const own = { leases: this.#leases, storageWaits, onFinal: this.#onFinal, onReopened };
    const deps = { ...this.#options, clock: this.#options.fleet.storeClock, ...own };
    const { pollEveryMs } = this.#options;
    const onDerived = () => this.#loops.nudge("intake");
    const deriving = { ...deps, look: { thoroughAtMs: 0 }, onDerived };
    const { fleet } = this.#options;
    const claimSideBySide = (step: Step, claim: SideBySideOptions["claim"]) =>
      this.#loops.runSideBySide(step, pollEveryMs, async (turn) =>
        fleet.claimsInMs > 0 || this.#health.isResting ? null : claim(turn),
      );
    claimSideBySide("derive", (turn) => claimToDerive(turn, deriving));
    claimSideBySide("intake", async (turn) => {
      const claim = () => claimToValidate(turn, deps);
      const work = await storageWaits.duringClaim("validate", claim);
      if (work === null) return null;
      return { ...work, run: () => work.run().finally(() => this.#scheduler.recheck()) };
    });
    claimSideBySide("finalize", (turn) =>
      storageWaits.duringClaim("finalize", () => claimToFinalize(turn, deps)),
    );
    this.#loops.run("chunks", pollEveryMs, async () =>
      fleet.claimsInMs > 0 ? fleet.claimsInMs : this.#scheduler.startNext(),
    );
    const sampler = new ProgressSampler({
      store: this.#options.store,
      running: () => this.#leases.runningBatches(),
      nowMs: () => this.#options.fleet.nowMs,
    });
    this.#loops.run("progress", pollEveryMs, () => sampler.sample());
  }

  /** Starts the loops of a process that only serves the API: the renewal of its leases, and the housekeeping. */
  startWithoutWork(): void {
    const { intents } = this.#options;
    this.#renewals.run("heartbeat", this.#leases.heartbeatMs, async () => {
      await this.#leases.renew();
      await intents.renew();
    });
    startHousekeeping(this.#loops, {
      ...this.#options,
      leases: this.#leases,
      forecaster: this.#forecaster,
      onStopping: () => this.nudgeStopping(),
      onResumed: () => this.#scheduler.recheck(),
    });
  }

  readonly #onFinal = (): void => {
    // Another batch may wait for the lines of this one.
    this.#loops.nudge("sweep", "derive");
    this.#options.onFinal();
  };

  renewLeasesIfLate(): Promise<void> {
    return this.#leases.renewIfLate();
  }

  /** Reports new work: a batch was created, or the source of one was deleted. */
  nudge(): void {
    this.#loops.nudge("derive", "intake");
  }

  /** Reports what can be removed: a file was deleted, or an upload has ended. */
  nudgeSweep(): void {
    this.#loops.nudge("sweep");
  }

  /** Reports chunks that another process has made, or that may be claimed again. */
  nudgeChunks(): void {
    this.#scheduler.recheck();
  }

  /**
   * Reports a batch that is to stop or was paused elsewhere. Its runs learn of it when the leases are renewed, which is too
   * much work for each new batch.
   */
  nudgeStopping(): void {
    this.#renewals.nudge("heartbeat");
    this.#scheduler.claiming?.then(
      () => this.#renewals.nudge("heartbeat"),
      () => {},
    );
    this.#scheduler.recheck();
    this.#loops.nudge("expiry", "finalize", "sweep");
  }

  /**
   * Ends the runs of paused batches in this process. Resolves once they send nothing new. Runs of other processes learn
   * of a pause by a nudge, or from their heartbeat.
   */
  async pauseRuns(): Promise<void> {
    // The loop of the scheduler logs a claim that fails.
    await this.#scheduler.claiming?.catch(() => {});
    // The heartbeat logs a failure when it tries again.
    await this.#leases.renewShared().catch(() => this.#renewals.nudge("heartbeat"));
    this.#scheduler.recheck();
  }

  /** Yields the lines of a batch that have ended so far, in the order of the input. Long rows come in pieces. */
  passedLines(batch: Batch, query: FinishedLinesQuery): AsyncGenerator<PassedLine> {
    return passedLines(batch, query, this.#options);
  }

  /**
   * Reads a page of the lines of a batch, each with its question and its answer. Calls `reserve` with the length of bytes
   * before it reads them to keep them.
   */
  readLinePage(
    batch: Batch,
    query: LineQuery,
    reserve: (bytes: number) => void,
  ): Promise<LinePage> {
    return readLinePage(batch, query, { ...this.#options, reserve });
  }

  /** Whether answers can be kept. Lines must not be sent while they cannot. */
  get canKeepAnswers(): boolean {
    return this.#health.isGood;
  }

  /** Reports that the routes may have changed: lines that have not gone out yet follow the new ones. */
  reroute(): void {
    this.#scheduler.reroute();
  }

  get isDraining(): boolean {
    return this.#loops.isDraining;
  }

  /** Takes no new work; requests in flight may end within `graceMs`. Resolves when nothing runs. */
  drain(graceMs: number): Promise<void> {
    this.#drained ??= this.#startDrain(graceMs);
    return this.#drained;
  }

  /** Ends the renewals. The engine must be drained, and no upload may be under way. */
  async close(): Promise<void> {
    this.#renewals.drain();
    await this.#renewals.settled();
  }

  async #startDrain(graceMs: number): Promise<void> {
    this.#loops.drain();
    this.#leases.drain(graceMs);
    await this.#loops.settled();
    await this.#scheduler.settled();
  }
}
