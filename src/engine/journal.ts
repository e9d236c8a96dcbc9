/**
 * Writes the journal, the only truth about which lines have been answered.
 *
 * The journal is append-only: it holds the outcomes of one chunk, in immutable segments. Records gather in memory and
 * are flushed together. A flush writes the segment blob first. Then one commit, guarded by the lease, writes its row
 * and adds its counts. A segment exists if and only if its row exists, so a crash between the two leaves garbage,
 * never half a segment. A line whose record was flushed survives `kill -9`; any other line may be sent again.
 *
 * A crash repeats the lines whose records wait in memory, and each flush costs some syncs. A flush therefore begins
 * once there are `flushLines` records and the flush before it began `minIntervalMs` ago. Where the disk is slow, the
 * interval grows so that the disk stays idle for most of the time. Fewer records wait for `flushMs`; more than
 * `flushBytes` wait for nothing.
 *
 * A flush that fails (a full disk, a store that is away) is tried again for as long as the run lives. Meanwhile no
 * other chunk may start, and `append` waits once `maxUnflushedBytes` have gathered.
 */
import type { Usage } from "../batch/batch.ts";
import { NO_USAGE } from "../batch/batch.ts";
import { addFailures, type FailureGroup, type LineFailure } from "../batch/failures.ts";
import { addAnswer } from "../batch/model-usage.ts";
import { type Consumption, NO_CONSUMPTION } from "../batch/price.ts";
import { addUsage } from "../batch/usage.ts";
import type { Blobs, WriteHints } from "../blobs/blobs.ts";
import { type Cancel, type Clock, sleep } from "../clock.ts";
import type { Room } from "../resources/memory-budget.ts";
import type { SegmentEntry } from "../store/chunks.ts";
import type { ChunkLease } from "../store/leases.ts";
import { segmentKey } from "../store/segment-key.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import type { LineLabels, Metrics } from "../telemetry/metrics.ts";
import { isRefusal } from "./failure.ts";
import type { Pricing } from "./pricing.ts";
import { crc32Of, recordHeader } from "./segment.ts";

export interface JournalRecord {
  readonly lineNumber: number;
  /** Whether the row belongs in the output file or, when false, in the error file. */
  readonly succeeded: boolean;
  /** The group of a line that failed. */
  readonly failure?: LineFailure | undefined;
  /** The finished row, newline included, in pieces. */
  readonly row: readonly Buffer[];
  /** The memory that the answer holds, released when the record is written or discarded. */
  readonly room?: Room | undefined;
  /** The callback for a record that is durable. */
  readonly onDurable?: (() => void) | undefined;
  /** What the answer is paid for; null for a row without one, or of an error. */
  readonly answer: PaidAnswer | null;
}

export interface PaidAnswer {
  /** The model as the client named it. */
  readonly model: string;
  readonly usage: Usage;
}

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
  /** The callback for a write that finds that another worker has the lease. It is called once. */
  readonly onLeaseLost: () => void;
  /** The journals that cannot be written at the moment: while there is one, no chunk is started. */
  readonly failingJournals: Set<Journal>;
  /** The signal that ends a failing flush. Its lines will be sent again. */
  readonly giveUp: AbortSignal;
}

interface Pending {
  /** The memory that the answers hold. */
  rooms: Room[];
  onDurable: (() => void)[];
  parts: Buffer[];
  bytes: number;
  completed: number;
  failed: number;
  usage: Usage;
  failures: readonly FailureGroup[];
  /** What the answers took, by model. */
  consumption: Map<string, Consumption>;
}

const nothingPending = (): Pending => ({
  rooms: [],
  onDurable: [],
  parts: [],
  bytes: 0,
  completed: 0,
  failed: 0,
  usage: NO_USAGE,
  failures: [],
  consumption: new Map(),
});

/** A segment whose blob is stored, and whose row is to follow. */
interface Written {
  readonly entry: SegmentEntry;
  readonly onDurable: readonly (() => void)[];
}

/** A flush begins no sooner after the start of the last one than so many times the time that one took. */
const INTERVAL_PER_FLUSH_TIME = 4;

export class Journal {
  readonly #options: JournalOptions;
  #pending = nothingPending();
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
    const rowBytes = record.row.reduce((sum, piece) => sum + piece.length, 0);
    const header = recordHeader(record, rowBytes);
    if (record.room !== undefined) pending.rooms.push(record.room);
    if (record.onDurable !== undefined) pending.onDurable.push(record.onDurable);
    pending.parts.push(header, ...record.row);
    pending.bytes += header.length + rowBytes;
    if (record.answer !== null) this.#countAnswer(record.answer);
    if (record.succeeded) pending.completed++;
    else pending.failed++;
    if (record.failure !== undefined) {
      pending.failures = addFailures(pending.failures, [{ ...record.failure, count: 1 }]);
    }
    if (pending.bytes >= limits.flushBytes) void this.flush();
    else if (pending.completed + pending.failed === limits.flushLines) {
      this.#flushAfter(this.#restMs());
    } else if (this.#cancelFlush === null) this.#flushAfter(limits.flushMs);
    return pending.bytes < limits.maxUnflushedBytes ? null : this.#flushed;
  }

  #countAnswer({ model, usage }: PaidAnswer): void {
    const pending = this.#pending;
    pending.usage = addUsage(pending.usage, usage);
    const sum = pending.consumption.get(model) ?? NO_CONSUMPTION;
    pending.consumption.set(model, addAnswer(sum, usage));
  }

  /** Makes all records so far durable. Never rejects. */
  flush(): Promise<void> {
    const { store, lease } = this.#options;
    this.#flushed = this.#flushed.then(async () => {
      const written = await this.#writeBlob();
      if (written === null) return;
      const { entry } = written;
      const isRecorded = await this.#persist(() => store.recordSegmentIfLeased(lease, entry));
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
      const isClosed = await this.#persist(() => store.closeChunkIfLeased(lease, entry));
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

  /** Ends all writing: another worker has the lease. */
  discard(): void {
    this.#isOver = true;
    this.#cancelFlush?.();
    this.#discardPending();
  }

  /** Takes the records that gathered, and leaves none. */
  #takePending(): Pending {
    const pending = this.#pending;
    this.#pending = nothingPending();
    return pending;
  }

  #discardPending(): void {
    for (const room of this.#takePending().rooms) room.release();
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
    if (this.#isOver) this.#discardPending();
    if (this.#pending.bytes === 0) return null;
    const { blobs, lease, clock, pricing, labels } = this.#options;
    this.#flushBeganAtMs = clock.elapsedMs();
    const { rooms, onDurable, parts, bytes, consumption, ...results } = this.#takePending();
    const paid = { project: labels.project, atMs: clock.nowMs() };
    const modelUsage = pricing.count(consumption, paid);
    const blobKey = segmentKey(lease, this.#segmentCount++);
    const isStored = await this.#persist(async () => {
      await blobs.putBytes(blobKey, parts);
      return true;
    });
    for (const room of rooms) room.release();
    if (!isStored) return null;
    const crc32 = await crc32Of(parts);
    return { entry: { blobKey, bytes, crc32, ...results, modelUsage }, onDurable };
  }

  /** Repeats the write until it works, the lease is lost, the store refuses it, or the run is over. */
  async #persist(write: () => Promise<boolean>): Promise<boolean> {
    const { clock, log, metrics, lease, limits } = this.#options;
    const { giveUp, onLeaseLost, failingJournals } = this.#options;
    while (!this.#isOver) {
      try {
        const isWritten = await write();
        failingJournals.delete(this);
        if (isWritten) return true;
        this.#isOver = true;
        onLeaseLost();
      } catch (err) {
        if (isRefusal(err)) {
          this.#isOver = true;
          this.#refusal = err as Error;
          break;
        }
        failingJournals.add(this);
        metrics.journalWriteFailed();
        log.error({ batch: lease.batchId, chunk: lease.chunkNumber, err }, "journal.write_failed");
        // Records are gone from here on: closing the chunk now would lose their lines.
        if (giveUp.aborted) this.#isOver = true;
        else await sleep(clock, limits.retryMs, giveUp);
      }
    }
    failingJournals.delete(this);
    return false;
  }
}
