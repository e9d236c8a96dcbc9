/**
 * Keeps the leases of this process. Leases are extended together, several times before they would run out. Each run
 * under a lease learns here that the lease was lost, or that its batch is to stop.
 *
 * A run under a lease has two signals, because "may I start more?" and "must I abort this?" are different questions.
 * `stop` aborts first: when the process drains, the batch is cancelled, expires or is paused, its lines are to go
 * another way, or the lease is lost. `abort` follows after a grace period. With a lost lease it follows at once, since no answer
 * still in flight could be recorded.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Decimal } from "../../batch/price.ts";
import type { Cancel, Clock } from "../../clock.ts";
import { ownWork } from "../../resources/client-work.ts";
import { sharedRuns } from "../../shared-runs.ts";
import type { Claim } from "../../store/claim.ts";
import type { BatchLease, ChunkLease, Renewal } from "../../store/leases.ts";
import type { Store } from "../../store/store.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import { RunWatch } from "./stalls.ts";

/** A renewal that fails twice must not cost a lease. */
const RENEWALS_IN_TTL = 3;
/**
 * The longest time between two renewals, however long the leases are. Where nudges do not arrive, runs learn of a pause, a
 * cancel or a delete with a renewal, and they are to learn of it within ten seconds.
 */
const MAX_HEARTBEAT_MS = 7_500;

/**
 * The reason for which a run ends early: the process drains, the batch ends or is paused, its lines take another
 * route, or another worker has the lease.
 */
export type EndReason = "drain" | "batch" | "pause" | "reroute" | "lease";

/** One run under a lease. */
export class Run {
  readonly #stop = new AbortController();
  readonly #abort = new AbortController();
  /** Counts its attempts, so that people can see when it stalls. */
  readonly watch = new RunWatch();
  readonly #asked = new Set<EndReason>();
  readonly #graces: Cancel[] = [];
  #endReason: EndReason | null = null;

  get stop(): AbortSignal {
    return this.#stop.signal;
  }

  get abort(): AbortSignal {
    return this.#abort.signal;
  }

  /** The first reason for which the run was asked to end, or null. A lost lease outranks the others. */
  get endReason(): EndReason | null {
    return this.#endReason;
  }

  /**
   * Starts nothing more. Requests in flight may go on for `graceMs`, and to their end when it is null. The shorter
   * grace counts when there are two reasons.
   */
  end(reason: Exclude<EndReason, "lease">, graceMs: number | null, clock: Clock): void {
    if (this.#asked.has(reason)) return;
    this.#asked.add(reason);
    this.#endReason ??= reason;
    this.#stop.abort();
    if (graceMs === null || this.#abort.signal.aborted) return;
    this.#graces.push(clock.after(graceMs, () => this.finish()));
  }

  /** Aborts all work at once. */
  loseLease(): void {
    this.#endReason = "lease";
    this.#stop.abort();
    this.finish();
  }

  /** Aborts what is left, and ends the wait for the grace period. */
  finish(): void {
    for (const cancel of this.#graces.splice(0)) cancel();
    this.#abort.abort();
  }
}

const chunkKey = (lease: ChunkLease) => `${lease.batchId}/${lease.chunkNumber}`;

interface Held<L> {
  readonly lease: L;
  readonly run: Run;
}

interface HeldChunk extends Held<ChunkLease> {
  /** The budget of its batch that the run knows. */
  readonly budget: Decimal | null;
}

/** Ends the run of a lost lease, unless the process holds a later one in its place. */
function loseIfHeld(held: Held<BatchLease> | undefined, { epoch }: BatchLease): void {
  if (held?.lease.epoch === epoch) held.run.loseLease();
}

export interface LeaseOptions {
  readonly store: Store;
  readonly clock: Clock;
  readonly metrics: Metrics;
  readonly owner: string;
  /** The time that requests in flight of a cancelled or expired batch may still take. */
  readonly stopGraceMs: number;
  /** The time without a renewal after which another worker may take over. */
  readonly leaseTtlMs: number;
}

const NOTHING_RENEWED: Renewal = {
  lostBatches: [],
  lostChunks: [],
  stopping: [],
  paused: [],
  budgets: [],
};

export class Leases {
  readonly #options: LeaseOptions;
  readonly #claim: Claim;
  readonly #batches = new Map<BatchId, Held<BatchLease>>();
  readonly #chunks = new Map<string, HeldChunk>();
  /** The grace of the drain; null until the process drains. */
  #drainGraceMs: number | null = null;
  /** The elapsed time of the last renewal. */
  #renewedAtMs: number;
  /** The earliest date since the last renewal. */
  #earliestDateMs: number;

  constructor(options: LeaseOptions) {
    this.#options = options;
    this.#claim = { owner: options.owner, ttlMs: options.leaseTtlMs };
    this.#renewedAtMs = options.clock.elapsedMs();
    this.#earliestDateMs = options.clock.nowMs();
  }

  /** The time between two renewals. */
  get heartbeatMs(): number {
    return Math.min(this.#options.leaseTtlMs / RENEWALS_IN_TTL, MAX_HEARTBEAT_MS);
  }

  /** Returns what a claim for work names: this process, and the time that it asks for. */
  async claim(): Promise<Claim> {
    await this.renewIfLate();
    return this.#claim;
  }

  /**
   * Renews the leases after a pause of the machine, when all of them have run out. Without this the process would
   * take its own work from itself. No elapsed time passes while a machine is suspended, so only the date shows the
   * pause. A date that was set back, and is set right again, shows the same.
   */
  async renewIfLate(): Promise<void> {
    const { clock, leaseTtlMs } = this.#options;
    const nowMs = clock.nowMs();
    this.#earliestDateMs = Math.min(this.#earliestDateMs, nowMs);
    const lateMs = Math.max(clock.elapsedMs() - this.#renewedAtMs, nowMs - this.#earliestDateMs);
    if (lateMs >= leaseTtlMs) await this.renew();
  }

  holdBatch(lease: BatchLease): Run {
    const run = this.#newRun();
    // Without a renewal in time the store lets any worker take over, this process included.
    this.#batches.get(lease.batchId)?.run.loseLease();
    this.#batches.set(lease.batchId, { lease, run });
    this.#options.metrics.leaseChanged("batch", "claimed");
    return run;
  }

  holdChunk(lease: ChunkLease, budget: Decimal | null): Run {
    const run = this.#newRun();
    this.#chunks.get(chunkKey(lease))?.run.loseLease();
    this.#chunks.set(chunkKey(lease), { lease, run, budget });
    this.#options.metrics.leaseChanged("chunk", "claimed");
    return run;
  }

  endBatchRun(lease: BatchLease): void {
    const held = this.#batches.get(lease.batchId);
    if (this.#endsRun("batch", held, lease)) this.#batches.delete(lease.batchId);
  }

  endChunkRun(lease: ChunkLease): void {
    const held = this.#chunks.get(chunkKey(lease));
    if (this.#endsRun("chunk", held, lease)) this.#chunks.delete(chunkKey(lease));
  }

  /** Returns false for a lease in whose place there is a later one. */
  #endsRun(kind: "batch" | "chunk", held: Held<BatchLease> | undefined, { epoch }: BatchLease) {
    const isCurrent = held?.lease.epoch === epoch;
    const isLost = !isCurrent || held.run.endReason === "lease";
    if (isLost) this.#options.metrics.leaseChanged(kind, "lost");
    if (isCurrent) held.run.finish();
    return isCurrent;
  }

  /** Lists the batches with chunks in this process. A batch may come several times. */
  *runningBatches(): Generator<BatchId> {
    for (const { lease } of this.#chunks.values()) yield lease.batchId;
  }

  /**
   * Renews the leases for a request of a client. Each renewal writes the rows of all runs of this process, so hundreds of
   * requests must not make as many: those that come during one share the next.
   */
  readonly renewShared = sharedRuns(() => ownWork(() => this.renew()));

  /** Extends every lease; ends the runs whose lease is lost or whose batch is to stop or paused. */
  async renew(): Promise<void> {
    const { store, clock, stopGraceMs } = this.#options;
    const batches = [...this.#batches.values()];
    const chunks = [...this.#chunks.values()];
    const [startedAtMs, dateMs] = [clock.elapsedMs(), clock.nowMs()];
    const held = {
      batches: batches.map(({ lease }) => lease),
      chunks: chunks.map(({ lease }) => lease),
    };
    const isAnyHeld = batches.length + chunks.length > 0;
    const renewal = isAnyHeld ? await store.renewLeases(held, this.#claim) : NOTHING_RENEWED;
    this.#renewedAtMs = startedAtMs;
    this.#earliestDateMs = dateMs;
    for (const lost of renewal.lostBatches) loseIfHeld(this.#batches.get(lost.batchId), lost);
    for (const lost of renewal.lostChunks) loseIfHeld(this.#chunks.get(chunkKey(lost)), lost);
    const stopping = new Set(renewal.stopping.map(({ batchId }) => batchId));
    const paused = new Set(renewal.paused);
    const budgets = new Map(renewal.budgets.map(({ batchId, budget }) => [batchId, budget]));
    for (const { lease, run, budget } of chunks) {
      if (stopping.has(lease.batchId)) run.end("batch", stopGraceMs, clock);
      if (paused.has(lease.batchId)) run.end("pause", null, clock);
      // The run may have reserved more than a new budget allows. The chunk is claimed anew, with the budget of now.
      const current = budgets.get(lease.batchId);
      if (current !== undefined && current !== budget) run.end("reroute", null, clock);
    }
  }

  /** Ends every run because the process drains, also the runs whose claim is still on its way. */
  drain(graceMs: number): void {
    this.#drainGraceMs = graceMs;
    for (const { run } of [...this.#batches.values(), ...this.#chunks.values()]) {
      run.end("drain", graceMs, this.#options.clock);
    }
  }

  #newRun(): Run {
    const run = new Run();
    if (this.#drainGraceMs !== null) run.end("drain", this.#drainGraceMs, this.#options.clock);
    return run;
  }
}
