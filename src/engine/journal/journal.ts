/**
 * The journal of one run of a chunk: gathers finished lines and makes them durable in groups.
 *
 * A line is safe only once it is here: its record is in a segment, a blob that is written first, and one commit under the
 * lease then adds the row of the segment and its counts to the batch (ADR 2). A write that fails is repeated until
 * the lease is lost, the store refuses it for good, the run is aborted, or only others can write (`journal-health.ts`). The
 * records that wait are bounded in bytes. Nothing may be written once the lease is known to be lost, and no line counts as
 * answered before its commit.
 */
import type { Blobs, WriteHints } from "../../blobs/blobs.ts";
import { type Cancel, type Clock, sleep } from "../../clock.ts";
import type { SegmentEntry } from "../../store/chunks.ts";
import type { ChunkLease } from "../../store/leases.ts";
import { segmentKey } from "../../store/segment-key.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { LineLabels, Metrics } from "../../telemetry/metrics.ts";
import { isRefusal } from "../steps/failure.ts";
import type { JournalHealth } from "./journal-health.ts";
import { type JournalRecord, PendingRecords } from "./pending-records.ts";
import type { Pricing } from "./pricing.ts";
import { crc32Of } from "./segment.ts";

export interface JournalLimits {
  /** The longest wait of a record for its flush to begin, unless the flush before takes longer. */
  readonly flushMs: number;
  /** The number of records worth a segment of their own. Without it each slow answer would get a file of its own. */
  readonly flushLines: number;
  /** The time from the beginning of a flush to the beginning of the next. */
  readonly minIntervalMs: number;
  readonly flushBytes: number;
  readonly maxUnflushedBytes: number;
  readonly retryMs: number;
}

const FLUSH_MS = 500;

/** Derives the limits from the write intervals that suit the storage. */
export const journalLimits = ({ minIntervalMs, fullBytes }: WriteHints): JournalLimits => ({
  flushMs: Math.max(FLUSH_MS, minIntervalMs),
  flushLines: 32,
  minIntervalMs,
  flushBytes: fullBytes,
  maxUnflushedBytes: 8 * 1024 * 1024,
  retryMs: 1_000,
});

export interface JournalOptions {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly limits: JournalLimits;
  readonly lease: ChunkLease;
  /** The labels of its lines, for metrics. */
  readonly labels: LineLabels;
  readonly pricing: Pricing;
  /** The callback for a lease that another worker has, or that is left to one. It is called once. */
  readonly onLeaseLost: () => void;
  readonly health: JournalHealth;
  /** The callback for a write that has succeeded, or has failed and is repeated. */
  readonly onWrite: (succeeded: boolean) => void;
  /** The signal that ends a failing flush. Its lines will be sent again. */
  readonly abort: AbortSignal;
}

/** A segment whose blob is stored, and whose row is to follow. */
interface Written {
  readonly entry: SegmentEntry;
  readonly onDurable: readonly (() => void)[];
}

/** A flush begins no sooner after the start of the last one than so many times the time that one took. */
const INTERVAL_PER_FLUSH_TIME = 4;

export class Journal {
  readonly #options: JournalOptions;
  #pending = new PendingRecords();
  #segmentCount = 0;
  /** Cancels the flush that is due next. */
  #cancelFlush: Cancel | null = null;
  /** Flushes run one after another; this is the end of the last one. */
  #flushed: Promise<void> = Promise.resolve();
  /** The journal must not be written any more: the lease is lost, or the records of a flush were discarded. */
  #isOver = false;
  #refusal: Error | null = null;
  #flushBeganAtMs: number;
  #flushTookMs = 0;

  constructor(options: JournalOptions) {
    this.#options = options;
    this.#flushBeganAtMs = options.clock.elapsedMs();
  }

  /**
   * Adds a record. Returns null when there is room for more, else a promise that resolves when there is. Neither says
   * that the record is durable.
   */
  append(record: JournalRecord): Promise<void> | null {
    const { limits } = this.#options;
    const pending = this.#pending;
    pending.add(record);
    if (pending.bytes >= limits.flushBytes) void this.flush();
    else if (pending.lineCount === limits.flushLines) {
      this.#flushAfter(this.#restMs());
    } else if (this.#cancelFlush === null) this.#flushAfter(limits.flushMs);
    return pending.bytes < limits.maxUnflushedBytes ? null : this.#flushed;
  }

  /** Makes all records so far durable. Never rejects. */
  flush(): Promise<void> {
    const { store, lease } = this.#options;
    this.#flushed = this.#flushed.then(async () => {
      const written = await this.#writeBlob();
      if (written === null) return;
      const { entry } = written;
      const isRecorded = await this.#persist("row", () =>
        store.recordSegmentIfLeased(lease, entry),
      );
      this.#flushTookMs = this.#options.clock.elapsedMs() - this.#flushBeganAtMs;
      if (isRecorded) this.#recordFlushed(written);
    });
    return this.#flushed;
  }

  /** Flushes what is left and ends the chunk, in one commit. */
  async close(): Promise<void> {
    this.#flushed = this.#flushed.then(async () => {
      const { store, lease, metrics } = this.#options;
      const written = await this.#writeBlob();
      const entry = written?.entry ?? null;
      const isClosed = await this.#persist("row", () => store.closeChunkIfLeased(lease, entry));
      if (isClosed) metrics.leaseChanged("chunk", "closed");
      if (isClosed && written !== null) this.#recordFlushed(written);
    });
    await this.#flushed;
  }

  /**
   * The error because of which the store will never take the write, or null. Another try would keep all others
   * waiting.
   */
  get refusal(): Error | null {
    return this.#refusal;
  }

  /** Ends all writing, because the lease is lost or given away. */
  discard(): void {
    this.#isOver = true;
    this.#cancelFlush?.();
    this.#takePending().release();
  }

  /** Takes the records that gathered, and leaves none. */
  #takePending(): PendingRecords {
    const pending = this.#pending;
    this.#pending = new PendingRecords();
    return pending;
  }

  #recordFlushed({ entry, onDurable }: Written): void {
    for (const notify of onDurable) notify();
    const { log, lease, metrics } = this.#options;
    const { completed, failed, bytes } = entry;
    metrics.journalFlushed(entry, this.#options.labels);
    const { batchId: batch, chunkNumber: chunk } = lease;
    log.debug({ batch, chunk, lines: completed + failed, bytes }, "journal.flushed");
  }

  #flushAfter(ms: number): void {
    this.#cancelFlush?.();
    this.#cancelFlush = this.#options.clock.after(ms, () => void this.flush());
  }

  /** Returns the time until the next flush may begin. */
  #restMs(): number {
    const { clock, limits } = this.#options;
    const intervalMs = Math.max(limits.minIntervalMs, INTERVAL_PER_FLUSH_TIME * this.#flushTookMs);
    const sinceMs = clock.elapsedMs() - this.#flushBeganAtMs;
    return Math.min(limits.flushMs, Math.max(0, intervalMs - sinceMs));
  }

  async #writeBlob(): Promise<Written | null> {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
    if (this.#isOver) this.#takePending().release();
    if (this.#pending.bytes === 0) return null;
    const { blobs, lease, clock, pricing, labels } = this.#options;
    this.#flushBeganAtMs = clock.elapsedMs();
    const pending = this.#takePending();
    const { onDurable, bytes, completed, failed, usage, failures, latencyCounts } = pending;
    const parts = pending.finish();
    const paid = { project: labels.project, atMs: clock.nowMs() };
    const modelUsage = pricing.count(pending.consumption, paid);
    const blobKey = segmentKey(lease, this.#segmentCount++);
    const isStored = await this.#persist("blob", async () => {
      await blobs.putBytes(blobKey, parts);
      return true;
    });
    pending.release();
    if (!isStored) return null;
    const crc32 = await crc32Of(parts);
    const results = { completed, failed, usage, failures, latencyCounts, modelUsage };
    return { entry: { blobKey, bytes, crc32, ...results }, onDurable };
  }

  /**
   * Repeats the write until it works, the lease is lost, the store refuses it, or the run is over. A chunk whose blobs only others
   * can write goes to them; a process that cannot write its row has lost its lease.
   */
  async #persist(what: "blob" | "row", write: () => Promise<boolean>): Promise<boolean> {
    const { clock, log, metrics, lease, limits } = this.#options;
    const { abort, onLeaseLost, onWrite, health } = this.#options;
    while (!this.#isOver) {
      try {
        const isWritten = await write();
        health.forget(this);
        if (what === "blob") health.noteWritable();
        onWrite(true);
        if (isWritten) return true;
        this.#isOver = true;
        onLeaseLost();
      } catch (err) {
        if (isRefusal(err)) {
          this.#isOver = true;
          this.#refusal = err as Error;
          break;
        }
        health.noteFailure(this);
        onWrite(false);
        metrics.journalWriteFailed();
        log.error({ batch: lease.batchId, chunk: lease.chunkNumber, err }, "journal.write_failed");
        // Records are gone from here on: closing the chunk now would lose their lines.
        if (abort.aborted) this.#isOver = true;
        else if (what === "blob" && (await health.givesAway(this))) this.#giveAway();
        else await sleep(clock, limits.retryMs, abort);
      }
    }
    health.forget(this);
    return false;
  }

  /** Leaves the chunk to another process, by a lease that is not renewed any more. */
  #giveAway(): void {
    const { lease, log, onLeaseLost } = this.#options;
    if (this.#isOver) return;
    this.#isOver = true;
    log.error({ batch: lease.batchId, chunk: lease.chunkNumber }, "chunk.given_away");
    onLeaseLost();
  }
}
