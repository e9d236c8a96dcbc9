/**
 * What this process holds. Leases are extended together, a few times before they would run out; whoever
 * works under a lease learns here that it was lost, or that its batch is to stop.
 *
 * A run under a lease has two signals, because "may I start more?" and "must I drop this?" are
 * different questions. `stop` aborts first: when the process drains, when the batch is cancelled or
 * expires, when its lines are to go another way, or when the lease is lost. `abort` follows after a grace period, or
 * at once with a lost lease, since nothing that is still in flight could be recorded.
 */
import type { BatchId } from "../batch/batch.ts";
import type { Cancel, Clock } from "../clock.ts";
import type { Claim } from "../store/claim.ts";
import type { BatchLease, ChunkLease, Renewal, Store } from "../store/store.ts";
import type { Metrics } from "../telemetry/metrics.ts";

/** Without a renewal for this long, another worker may take over. Longer: slower recovery from a dead machine. */
const LEASE_TTL_MS = 30_000;
export const HEARTBEAT_MS = LEASE_TTL_MS / 3;

/**
 * Why a run ends early: the process leaves, the batch ends, its lines are to go another way, or the lease is
 * somebody else's now.
 */
export type EndReason = "drain" | "batch" | "reroute" | "lease";

/** One run under a lease. */
export class Run {
  readonly #stop = new AbortController();
  readonly #abort = new AbortController();
  readonly #asked = new Set<EndReason>();
  readonly #graces: Cancel[] = [];
  #endReason: EndReason | null = null;

  get stop(): AbortSignal {
    return this.#stop.signal;
  }

  get abort(): AbortSignal {
    return this.#abort.signal;
  }

  /** What asked the run to end first, or null. A lost lease outranks the others. */
  get endReason(): EndReason | null {
    return this.#endReason;
  }

  /**
   * Starts nothing more; what is in flight may go on for `graceMs`, and to its end when that is null. Of two reasons
   * the shorter grace counts.
   */
  end(reason: Exclude<EndReason, "lease">, graceMs: number | null, clock: Clock): void {
    if (this.#asked.has(reason)) return;
    this.#asked.add(reason);
    this.#endReason ??= reason;
    this.#stop.abort();
    if (graceMs === null || this.#abort.signal.aborted) return;
    this.#graces.push(clock.after(graceMs, () => this.#drop()));
  }

  /** Drops everything now. */
  loseLease(): void {
    this.#endReason = "lease";
    this.#stop.abort();
    this.#drop();
  }

  /** The run is over: ends the wait for its grace period. */
  finish(): void {
    this.#drop();
  }

  #drop(): void {
    for (const cancel of this.#graces.splice(0)) cancel();
    this.#abort.abort();
  }
}

const chunkKey = (lease: ChunkLease) => `${lease.batchId}/${lease.chunkNumber}`;

interface Held<L> {
  readonly lease: L;
  readonly run: Run;
}

export interface LeaseOptions {
  readonly store: Store;
  readonly clock: Clock;
  readonly metrics: Metrics;
  readonly owner: string;
  /** For requests in flight of a batch that is cancelled or expires. */
  readonly stopGraceMs: number;
}

interface Moment {
  readonly nowMs: number;
  readonly elapsedMs: number;
}

const momentOf = (clock: Clock): Moment => ({
  nowMs: clock.nowMs(),
  elapsedMs: clock.elapsedMs(),
});

const NOTHING_RENEWED: Renewal = { lostBatches: [], lostChunks: [], stopping: [] };

export class Leases {
  readonly #options: LeaseOptions;
  readonly #batches = new Map<BatchId, Held<BatchLease>>();
  readonly #chunks = new Map<string, Held<ChunkLease>>();
  /** Null until the process is leaving. */
  #drainGraceMs: number | null = null;
  #renewedAt: Moment;

  constructor(options: LeaseOptions) {
    this.#options = options;
    this.#renewedAt = momentOf(options.clock);
  }

  /** A bid for work in this process's name. */
  async claim(): Promise<Claim> {
    await this.renewIfLate();
    return this.#bid();
  }

  /**
   * After a pause of the machine all leases have run out: this process must not take its work from itself. No time
   * elapses while a machine is suspended; only the date tells.
   */
  async renewIfLate(): Promise<void> {
    const { nowMs, elapsedMs } = momentOf(this.#options.clock);
    const lateMs = Math.max(elapsedMs - this.#renewedAt.elapsedMs, nowMs - this.#renewedAt.nowMs);
    if (lateMs >= LEASE_TTL_MS) await this.renew();
  }

  #bid(): Claim {
    return { owner: this.#options.owner, ttlMs: LEASE_TTL_MS };
  }

  holdBatch(lease: BatchLease): Run {
    const run = this.#newRun();
    // Without a renewal in time the store lets anybody take over, also the one who had it.
    this.#batches.get(lease.batchId)?.run.loseLease();
    this.#batches.set(lease.batchId, { lease, run });
    this.#options.metrics.leaseChanged("batch", "claimed");
    return run;
  }

  holdChunk(lease: ChunkLease): Run {
    const run = this.#newRun();
    this.#chunks.get(chunkKey(lease))?.run.loseLease();
    this.#chunks.set(chunkKey(lease), { lease, run });
    this.#options.metrics.leaseChanged("chunk", "claimed");
    return run;
  }

  dropBatch(lease: BatchLease): void {
    const held = this.#batches.get(lease.batchId);
    const isSuperseded = held?.lease.epoch !== lease.epoch;
    if (isSuperseded || held.run.endReason === "lease") this.#recordLost("batch");
    if (isSuperseded) return;
    held.run.finish();
    this.#batches.delete(lease.batchId);
  }

  dropChunk(lease: ChunkLease): void {
    const held = this.#chunks.get(chunkKey(lease));
    const isSuperseded = held?.lease.epoch !== lease.epoch;
    if (isSuperseded || held.run.endReason === "lease") this.#recordLost("chunk");
    if (isSuperseded) return;
    held.run.finish();
    this.#chunks.delete(chunkKey(lease));
  }

  /** Extends every lease; ends the runs whose lease is lost or whose batch is to stop. */
  async renew(): Promise<void> {
    const { store, clock, stopGraceMs } = this.#options;
    const batches = [...this.#batches.values()];
    const chunks = [...this.#chunks.values()];
    const startedAt = momentOf(clock);
    const held = {
      batches: batches.map(({ lease }) => lease),
      chunks: chunks.map(({ lease }) => lease),
    };
    const isAnyHeld = batches.length + chunks.length > 0;
    const renewal = isAnyHeld ? await store.renewLeases(held, this.#bid()) : NOTHING_RENEWED;
    this.#renewedAt = startedAt;
    for (const lost of renewal.lostBatches) {
      const held = this.#batches.get(lost.batchId);
      if (held?.lease.epoch === lost.epoch) held.run.loseLease();
    }
    for (const lost of renewal.lostChunks) {
      const held = this.#chunks.get(chunkKey(lost));
      if (held?.lease.epoch === lost.epoch) held.run.loseLease();
    }
    const stopping = new Set(renewal.stopping.map(({ batchId }) => batchId));
    for (const { lease, run } of chunks) {
      if (stopping.has(lease.batchId)) run.end("batch", stopGraceMs, clock);
    }
  }

  /** The process is leaving: ends every run, also those whose claim is still on its way. */
  drain(graceMs: number): void {
    this.#drainGraceMs = graceMs;
    for (const { run } of [...this.#batches.values(), ...this.#chunks.values()]) {
      run.end("drain", graceMs, this.#options.clock);
    }
  }

  #recordLost(kind: "batch" | "chunk"): void {
    this.#options.metrics.leaseChanged(kind, "lost");
  }

  #newRun(): Run {
    const run = new Run();
    if (this.#drainGraceMs !== null) run.end("drain", this.#drainGraceMs, this.#options.clock);
    return run;
  }
}
