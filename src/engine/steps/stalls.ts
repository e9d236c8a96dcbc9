/**
 * Finds out which chunks of this process have no line under way, and why, so that their batch can say so. The counters of
 * a run are looked at about once a second, because a line must cost nothing here. This is memory of one process, for
 * people to read. No work may depend on it.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { Wait } from "../../batch/forecast.ts";
import type { Clock } from "../../clock.ts";
import type { WaitingReason } from "../../contract/batch-extension.ts";
import type { ChunkLease } from "../../store/leases.ts";
import type { LineWatch, Unavailability } from "../../upstream/request.ts";
import { UNWRITABLE } from "../dispatch/waiting.ts";
import { isPassing } from "./failure.ts";

/** A chunk is stalled when no attempt is under way, and no line was answered from the last look to this one. */
const LOOK_EVERY_MS = 1_000;
/** The number of chunks that other replicas learn of. */
const MAX_REPORTED = 1_000;

/** A chunk without a line under way, as replicas report it. */
export type ReportedStall = readonly [
  id: BatchId,
  reason: WaitingReason,
  upstreamError: string | null,
];

/** Counts the attempts and the answers of one run. */
export class RunWatch implements LineWatch {
  #underWayCount = 0;
  #retryCount = 0;
  #failure: Unavailability | null = null;
  #answeredCount = 0;
  #answeredAtLastLook = -1;
  #hasLines = true;
  #canWrite = true;
  /** The reason as of the last look; null while lines go on. */
  wait: Wait | null = null;

  attemptBegins(): void {
    this.#underWayCount++;
  }

  attemptEnded(): void {
    this.#underWayCount--;
  }

  retryBegins(failure: Unavailability): void {
    this.#retryCount++;
    this.#failure = failure;
  }

  retryEnded(): void {
    this.#retryCount--;
  }

  lineAnswered(): void {
    this.#answeredCount++;
  }

  /** Takes note that no line waits any more: what is left of the run is to write its answers. */
  linesEnded(): void {
    this.#hasLines = false;
  }

  /** Takes note of a write of answers that has succeeded, or has failed and is repeated. */
  journalWrote(succeeded: boolean): void {
    this.#canWrite = succeeded;
  }

  look(): void {
    const isWaiting = this.#hasLines || !this.#canWrite;
    const isIdle = isWaiting && this.#underWayCount === 0;
    this.wait = isIdle && this.#answeredCount === this.#answeredAtLastLook ? this.#reason() : null;
    this.#answeredAtLastLook = this.#answeredCount;
  }

  #reason(): Wait {
    if (!this.#canWrite) return UNWRITABLE;
    if (this.#retryCount === 0 || this.#failure === null) return NO_ROOM;
    const { reason, upstreamError } = this.#failure;
    return { reason: reason === "no_room" ? reason : "retrying", upstreamError };
  }
}

const NO_ROOM: Wait = { reason: "no_room", upstreamError: null };

interface Failed {
  readonly batchId: BatchId;
  readonly wait: Wait;
  /** The end of its lease: until then no worker tries again. */
  readonly untilMs: number;
}

interface StallsOptions {
  readonly clock: Pick<Clock, "elapsedMs">;
  readonly leaseTtlMs: number;
}

const keyOf = ({ batchId, chunkNumber }: ChunkLease) => `${batchId}/${chunkNumber}`;

export class Stalls {
  readonly #options: StallsOptions;
  readonly #running = new Map<RunWatch, BatchId>();
  /** The chunks whose run has failed, by their keys. */
  readonly #failed = new Map<string, Failed>();
  #lookedAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: StallsOptions) {
    this.#options = options;
  }

  begin(lease: ChunkLease, watch: RunWatch): void {
    this.#failed.delete(keyOf(lease));
    this.#running.set(watch, lease.batchId);
  }

  end(watch: RunWatch): void {
    this.#running.delete(watch);
  }

  /** Takes note of a run that has failed, whose chunk is tried again after the end of its lease. */
  noteFailure(lease: ChunkLease, failure: unknown): void {
    const { clock, leaseTtlMs } = this.#options;
    const reason = isPassing(failure) ? "storage_unavailable" : "retrying";
    this.#failed.set(keyOf(lease), {
      batchId: lease.batchId,
      wait: { reason, upstreamError: null },
      untilMs: clock.elapsedMs() + leaseTtlMs,
    });
  }

  /** Lists the chunks without a line under way, once each. */
  list(): ReportedStall[] {
    this.#lookIfDue();
    const stalls: ReportedStall[] = [];
    for (const [{ wait }, id] of this.#running) if (wait !== null) stalls.push(reported(id, wait));
    for (const { batchId, wait } of this.#failed.values()) stalls.push(reported(batchId, wait));
    return stalls;
  }

  /** Lists as many as a report may have. */
  report(): ReportedStall[] {
    return this.list().slice(0, MAX_REPORTED);
  }

  #lookIfDue(): void {
    const nowMs = this.#options.clock.elapsedMs();
    if (nowMs - this.#lookedAtMs < LOOK_EVERY_MS) return;
    this.#lookedAtMs = nowMs;
    for (const watch of this.#running.keys()) watch.look();
    for (const [key, { untilMs }] of this.#failed) if (untilMs <= nowMs) this.#failed.delete(key);
  }
}

const reported = (id: BatchId, { reason, upstreamError }: Wait): ReportedStall => [
  id,
  reason,
  upstreamError,
];
