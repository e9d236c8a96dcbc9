/**
 * The records of a chunk that wait for their flush, and the sums that are committed with them. It is on the hot path: a
 * record costs no more than some additions and one copy. A record that was added must be taken or released, or the
 * memory of its answer stays counted.
 */
import { type AnswerNames, NO_USAGE, type Usage } from "../../batch/batch.ts";
import { addFailures, type FailureGroup, type LineFailure } from "../../batch/failures.ts";
import { latencyBucket, noLatencies } from "../../batch/latency.ts";
import { addAnswer } from "../../batch/model-usage.ts";
import { type Consumption, NO_CONSUMPTION, type Price } from "../../batch/price.ts";
import { addUsage } from "../../batch/usage.ts";
import type { Room } from "../../resources/memory-budget.ts";
import { RecordBytes } from "./record-bytes.ts";
import { recordHeader } from "./segment.ts";

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
  /** The time from the first attempt to the answer; undefined for a line that was not sent. */
  readonly latencyMs?: number | undefined;
  /** What the answer is paid for; null for a row without one, or of an error. */
  readonly answer: PaidAnswer | null;
}

export interface PaidAnswer {
  /** The model as the client named it. */
  readonly model: string;
  readonly price: Price | null;
  readonly usage: Usage;
  readonly names: AnswerNames | undefined;
}

export class PendingRecords {
  /** The memory that the answers hold. */
  readonly rooms: Room[] = [];
  readonly onDurable: (() => void)[] = [];
  completed = 0;
  failed = 0;
  usage: Usage = NO_USAGE;
  failures: readonly FailureGroup[] = [];
  latencyCounts: number[] | null = null;
  readonly #bytes = new RecordBytes();
  /** What the answers took, by price and model. */
  readonly consumption = new Map<Price | null, Map<string, Consumption>>();

  get bytes(): number {
    return this.#bytes.length;
  }

  get lineCount(): number {
    return this.completed + this.failed;
  }

  add(record: JournalRecord): void {
    const rowBytes = record.row.reduce((sum, piece) => sum + piece.length, 0);
    const { lineNumber, succeeded, answer } = record;
    this.#bytes.addText(recordHeader({ lineNumber, succeeded, names: answer?.names }, rowBytes));
    for (const piece of record.row) this.#bytes.add(piece);
    if (record.room !== undefined) this.rooms.push(record.room);
    if (record.onDurable !== undefined) this.onDurable.push(record.onDurable);
    if (answer !== null) this.#countAnswer(answer);
    if (record.latencyMs !== undefined) this.#countLatency(record.latencyMs);
    if (succeeded) this.completed++;
    else this.failed++;
    if (record.failure !== undefined) {
      this.failures = addFailures(this.failures, [{ ...record.failure, count: 1 }]);
    }
  }

  /** Returns the bytes of the segment. Nothing may be added afterwards. */
  finish(): readonly Buffer[] {
    return this.#bytes.finish();
  }

  /** Gives back the memory of the answers, once they are written or discarded. */
  release(): void {
    for (const room of this.rooms.splice(0)) room.release();
  }

  #countLatency(latencyMs: number): void {
    this.latencyCounts ??= noLatencies();
    const bucket = latencyBucket(latencyMs);
    this.latencyCounts[bucket] = (this.latencyCounts[bucket] ?? 0) + 1;
  }

  #countAnswer({ model, price, usage }: PaidAnswer): void {
    this.usage = addUsage(this.usage, usage);
    let sums = this.consumption.get(price);
    if (sums === undefined) {
      sums = new Map();
      this.consumption.set(price, sums);
    }
    sums.set(model, addAnswer(sums.get(model) ?? NO_CONSUMPTION, usage));
  }
}
