/**
 * The readable records of one chunk, by line number. Small rows are kept in memory; those of a larger chunk are read one
 * by one when their turn comes, and ahead of it where a read has a latency. The first record of a line wins: a line that was
 * sent again has the row that counted.
 */
import type { AnswerNames } from "../../batch/batch.ts";
import type { BlobReader, ByteRange } from "../../blobs/blobs.ts";
import type { Segment } from "../../store/chunks.ts";
import type { RecordExtent, SegmentReading } from "../journal/segment.ts";
import { ReadAhead } from "./read-ahead.ts";

export interface Row {
  readonly lineNumber: number;
  /** A `not_run` row stands in the error file, but is not counted as failed. */
  readonly kind: "completed" | "failed" | "not_run";
  /** The row, or the beginning of one that has a `rest`. */
  readonly bytes: Buffer;
  /** The place of the rest of a long row, which was left in the journal. */
  readonly rest?: RowPlace;
  /** The place in the journal; left out for a line without a record. */
  readonly place?: RowPlace;
  /** Whether the line was not sent, because its body came before. */
  readonly isDuplicate?: true;
  /** The names in the journal; null or left out where it has none, or where the row is not from it. */
  readonly names?: AnswerNames | null;
}

/** A run of bytes in a blob. */
export interface RowPlace extends ByteRange {
  readonly blobKey: string;
}

interface IndexedRecord extends RecordExtent {
  readonly segment: Segment;
  /** The row; null when the rows of the chunk are too large to keep. */
  readonly bytes: Buffer | null;
}

interface RecordLimits {
  readonly blobs: BlobReader;
  /** The longest row that is read. */
  readonly maxRowBytes: number;
  /** The limit for rows that are read ahead of their use. */
  readonly maxAheadBytes: number;
}

export class ChunkRecords {
  readonly #blobs: BlobReader;
  readonly #maxRowBytes: number;
  readonly #maxAheadBytes: number;
  readonly #records = new Map<number, IndexedRecord>();

  constructor({ blobs, maxRowBytes, maxAheadBytes }: RecordLimits) {
    this.#blobs = blobs;
    this.#maxRowBytes = maxRowBytes;
    this.#maxAheadBytes = maxAheadBytes;
  }

  /** Adds records; the first record of a line wins. */
  add(
    segment: Segment,
    { bytes, records }: Pick<SegmentReading & { ok: true }, "bytes" | "records">,
    isKept: boolean,
  ): void {
    for (const record of records) {
      if (this.#records.has(record.lineNumber)) continue;
      const kept = isKept ? (bytes?.subarray(record.start, record.end) ?? null) : null;
      this.#records.set(record.lineNumber, { ...record, segment, bytes: kept });
    }
  }

  get count(): number {
    return this.#records.size;
  }

  get lineNumbers(): ReadonlySet<number> {
    return new Set(this.#records.keys());
  }

  /** Yields the rows from a line on in order, together when they are small enough to be kept. */
  async *rows(fromLine: number): AsyncGenerator<readonly Row[]> {
    const records = [...this.#records.values()]
      .filter(({ lineNumber }) => lineNumber >= fromLine)
      .sort((a, b) => a.lineNumber - b.lineNumber);
    const kept: Row[] = [];
    const rows = new ReadAhead(records, {
      limits: { maxCount: this.#blobs.maxReadsAhead, maxBytes: this.#maxAheadBytes },
      bytesOf: ({ start, end }) => end - start,
      read: (record) => this.#read(record),
    });
    for (const record of records) {
      if (record.bytes === null) yield [await rows.take(record)];
      else kept.push(this.#isLeft(record) ? leftIn(record) : rowOf(record, record.bytes));
    }
    if (kept.length > 0) yield kept;
  }

  async row(lineNumber: number): Promise<Row> {
    const record = this.#records.get(lineNumber);
    if (record === undefined) throw new Error(`no record of line ${lineNumber}`);
    return this.#read(record);
  }

  #isLeft({ start, end }: IndexedRecord): boolean {
    return end - start > this.#maxRowBytes;
  }

  async #read(record: IndexedRecord): Promise<Row> {
    const { segment, start, end } = record;
    if (this.#isLeft(record)) return leftIn(record);
    const bytes = record.bytes ?? (await this.#blobs.readRange(segment.blobKey, { start, end }));
    return rowOf(record, bytes);
  }
}

const NOTHING = Buffer.alloc(0);
const placeOf = ({ segment: { blobKey }, start, end }: IndexedRecord): RowPlace => ({
  blobKey,
  start,
  end,
});

const leftIn = (record: IndexedRecord): Row => ({
  ...rowOf(record, NOTHING),
  rest: placeOf(record),
});

const rowOf = (record: IndexedRecord, bytes: Buffer): Row => ({
  lineNumber: record.lineNumber,
  kind: record.succeeded ? "completed" : "failed",
  bytes,
  names: record.names,
  place: placeOf(record),
});
