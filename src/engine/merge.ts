/**
 * The rows of a batch in the order of its input, from the journals of its chunks.
 *
 * The chunks of one route follow each other in the file, those of different routes interleave, so each route is
 * one ordered stream and the streams are merged by line number. One chunk of each route is in memory
 * at a time: the index of its records, and the rows themselves as long as they are small; the rows of a
 * larger chunk are read one by one.
 *
 * When the batch was stopped, lines without a record get a row that says why; only then is the input
 * read again, for their custom ids.
 */
import type { Chunk, StopReason } from "../batch/batch.ts";
import { BATCH_CANCELLED, BATCH_EXPIRED, noAnswerLine } from "../batch/outcome.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { ChunkJournal, Segment } from "../store/store.ts";
import { readLines } from "./chunk-input.ts";
import { type RecordExtent, readRecords } from "./journal.ts";
import { parsedLine } from "./parsed-line.ts";

/** Rows of one chunk are kept in memory up to this much. */
const MAX_KEPT_BYTES = 16 * 1024 * 1024;

export interface Row {
  readonly lineNumber: number;
  readonly succeeded: boolean;
  readonly bytes: Buffer;
}

export interface MergeOptions {
  readonly blobs: Blobs;
  readonly inputBlobKey: string;
  readonly stopReason: StopReason | null;
}

/** Every line of every chunk exactly once, by line number; in groups, because a step for each row costs. */
export async function* mergeRows(
  journals: readonly ChunkJournal[],
  options: MergeOptions,
): AsyncGenerator<readonly Row[]> {
  const byRoute = Map.groupBy(journals, ({ chunk }) => chunk.route);
  const routes = [...byRoute.values()].map((chunks) => new RouteRows(routeRows(chunks, options)));
  for (const route of routes) await route.fill();
  for (;;) {
    const [first, second] = routes
      .filter((route) => route.head !== null)
      .sort((a, b) => lineNumberOf(a) - lineNumberOf(b));
    if (first === undefined) return;
    yield first.takeBefore(second === undefined ? Number.POSITIVE_INFINITY : lineNumberOf(second));
    await first.fill();
  }
}

const lineNumberOf = ({ head }: RouteRows) => head?.lineNumber ?? Number.POSITIVE_INFINITY;

/** The rows of one route, read group by group. */
class RouteRows {
  readonly #groups: AsyncGenerator<readonly Row[]>;
  #group: readonly Row[] = [];
  #at = 0;

  constructor(groups: AsyncGenerator<readonly Row[]>) {
    this.#groups = groups;
  }

  /** Null at the end, and before the first {@link fill}. */
  get head(): Row | null {
    return this.#group[this.#at] ?? null;
  }

  /** Reads on when all rows that were read are taken. */
  async fill(): Promise<void> {
    while (this.head === null) {
      const next = await this.#groups.next();
      if (next.done === true) return;
      this.#group = next.value;
      this.#at = 0;
    }
  }

  takeBefore(lineNumber: number): readonly Row[] {
    const from = this.#at;
    while (this.head !== null && this.head.lineNumber < lineNumber) this.#at++;
    return this.#group.slice(from, this.#at);
  }
}

async function* routeRows(journals: readonly ChunkJournal[], options: MergeOptions) {
  for (const journal of journals) yield* chunkRows(journal, options);
}

async function* chunkRows(
  { chunk, segments }: ChunkJournal,
  options: MergeOptions,
): AsyncGenerator<readonly Row[]> {
  const records = await ChunkRecords.read(options.blobs, segments);
  if (records.count === chunk.lineCount) {
    const kept = records.keptRows();
    if (kept !== null) yield kept;
    else for (const lineNumber of records.lineNumbers()) yield [await records.row(lineNumber)];
    return;
  }
  if (options.stopReason === null) {
    throw new Error(`chunk ${chunk.number} of ${chunk.batchId} is closed but has unanswered lines`);
  }
  const error = options.stopReason === "cancelled" ? BATCH_CANCELLED : BATCH_EXPIRED;
  for await (const { lineNumber, customId } of readCustomIds(chunk, options)) {
    if (records.has(lineNumber)) yield [await records.row(lineNumber)];
    else yield [{ lineNumber, succeeded: false, bytes: noAnswerLine(customId, error) }];
  }
}

async function* readCustomIds({ extents }: Chunk, { blobs, inputBlobKey: key }: MergeOptions) {
  for await (const lines of readLines({ blobs, key }, extents)) {
    for (const line of lines) {
      const customId =
        line.bytes === null ? null : ((await parsedLine(line.bytes))?.customId ?? null);
      if (line.bytes === null || customId === null) {
        throw new Error(`line ${line.number} of the input file is not what was validated`);
      }
      yield {
        lineNumber: line.number,
        customId: line.bytes.subarray(customId.start, customId.end),
      };
    }
  }
}

interface IndexedRecord extends RecordExtent {
  readonly segment: Segment;
  /** Null when the chunk's rows are too large to keep. */
  readonly bytes: Buffer | null;
}

/** The records of one chunk by line number. */
class ChunkRecords {
  readonly #blobs: Blobs;
  readonly #records = new Map<number, IndexedRecord>();

  private constructor(blobs: Blobs) {
    this.#blobs = blobs;
  }

  static async read(blobs: Blobs, segments: readonly Segment[]): Promise<ChunkRecords> {
    const records = new ChunkRecords(blobs);
    const totalBytes = segments.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const segment of segments) {
      const bytes = await blobs.readRange(segment.blobKey, { start: 0, end: segment.bytes });
      for (const record of readRecords(bytes)) {
        // The first record of a line wins.
        if (records.#records.has(record.lineNumber)) continue;
        const kept = totalBytes > MAX_KEPT_BYTES ? null : bytes.subarray(record.start, record.end);
        records.#records.set(record.lineNumber, { ...record, segment, bytes: kept });
      }
    }
    return records;
  }

  get count(): number {
    return this.#records.size;
  }

  has(lineNumber: number): boolean {
    return this.#records.has(lineNumber);
  }

  lineNumbers(): number[] {
    return [...this.#records.keys()].sort((a, b) => a - b);
  }

  /** All rows in order; null when they are too large to keep. */
  keptRows(): Row[] | null {
    const rows: Row[] = [];
    for (const { lineNumber, succeeded, bytes } of this.#records.values()) {
      if (bytes === null) return null;
      rows.push({ lineNumber, succeeded, bytes });
    }
    return rows.sort((a, b) => a.lineNumber - b.lineNumber);
  }

  async row(lineNumber: number): Promise<Row> {
    const record = this.#records.get(lineNumber);
    if (record === undefined) throw new Error(`no record of line ${lineNumber}`);
    const { segment, succeeded, start, end } = record;
    const bytes = record.bytes ?? (await this.#blobs.readRange(segment.blobKey, { start, end }));
    return { lineNumber, succeeded, bytes };
  }
}
