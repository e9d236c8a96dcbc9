/**
 * Merges the journals of a batch into rows in the order of its input.
 *
 * The chunks of one route follow each other in the file, and the chunks of different routes interleave. Each route is
 * therefore one ordered stream, and the streams are merged by line number. The chunks of a sample are streams of their own,
 * because their lines are spread over the file. Memory holds one chunk of each stream at a
 * time: the index of its records, and the rows too when they are small. The rows of a larger chunk are read one by
 * one. Each of a hundred streams has its next row at hand, so a long row is left in the journal. Where a read has a latency,
 * the next segments and rows are read ahead, within a limit of bytes.
 *
 * Lines without a record get a row that says why. There are such lines when the batch was stopped, and when a segment
 * cannot be read any more. While the batch has time left, unreadable lines must not get a row. The merge then goes on
 * to the last chunk to find which lines have to be sent again, and reports them ({@link Merge.incomplete}).
 */
import type { Chunk, StopReason } from "../../batch/batch.ts";
import { BATCH_CANCELLED, BATCH_EXPIRED, noAnswerLine } from "../../batch/outcome.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import type { Segment } from "../../store/chunks.ts";
import type { ChunkJournal, IncompleteChunk } from "../../store/finalizing.ts";
import { findLeftLines, type LeftLine } from "../chunks/chunk-input.ts";
import { readSegment, type SegmentReading } from "../journal/segment.ts";
import { ANSWER_LOST, unreadableLine } from "../steps/failure.ts";
import { ChunkRecords, type Row } from "./chunk-records.ts";
import { ReadAhead } from "./read-ahead.ts";
import { nextLines, RouteRows, RoutesByLine } from "./route-rows.ts";

const NOTHING = Buffer.alloc(0);

/** The key of an input whose row was deleted. Its bytes are deleted too. */
export const NO_SUCH_BLOB = "files/none";

/** The rows of one chunk are kept in memory up to this size. */
const MAX_KEPT_BYTES = 16 * 1024 * 1024;
/** The limit for all routes together: a batch may have a hundred. */
const MAX_KEPT_TOTAL_BYTES = 32 * 1024 * 1024;
/** The limit for what is read ahead of its use, for all routes together. */
const MAX_AHEAD_BYTES = 8 * 1024 * 1024;
/** A longer row is left in the journal. */
const MAX_ROW_BYTES = 4 * 1024 * 1024;

export interface MergeOptions {
  readonly blobs: BlobReader;
  readonly inputBlobKey: string;
  readonly stopReason: StopReason | null;
  /**
   * Whether lines without a readable record are to be sent again, get rows, are left out, or end the merge: then the first
   * of them has an empty `not_run` row, behind which the rows mean nothing.
   */
  readonly left: "sent_again" | "rows" | "omitted" | "end";
  /** The limit for the rows of a chunk that are kept in memory. */
  readonly maxKeptBytes?: number;
  /** The limit for what is read ahead of its use. */
  readonly maxAheadBytes?: number;
  /** The longest row that is read. */
  readonly maxRowBytes?: number;
  /** Whether an error that might pass counts as damage. */
  readonly isLastTry: boolean;
  readonly onDamaged: (damage: { chunk: number; blob: string; problem: string }) => void;
}

/** One pass over the journals of a batch. */
export class Merge {
  readonly #options: MergeOptions;
  /** The chunks with lines that lack a readable record, although the batch was not stopped. */
  readonly incomplete: IncompleteChunk[] = [];
  #maxKeptBytes = MAX_KEPT_BYTES;
  #maxAheadBytes = MAX_AHEAD_BYTES;
  #maxRowBytes = MAX_ROW_BYTES;

  constructor(options: MergeOptions) {
    this.#options = options;
  }

  /**
   * Yields every line of every chunk exactly once, by line number. Rows come in groups, because a step for each row
   * costs time. With `fromLine` only the lines from there on have rows. A chunk is not read before one of its lines may
   * be the next, so a reader of some lines costs the chunks of those lines, however many routes there are.
   */
  async *rows(journals: readonly ChunkJournal[], fromLine = 1): AsyncGenerator<readonly Row[]> {
    const lineOf = nextLines(journals, fromLine);
    const streams = streamsOf(journals.filter((journal) => lineOf.has(journal)));
    const { maxKeptBytes = MAX_KEPT_BYTES, maxRowBytes = MAX_ROW_BYTES } = this.#options;
    const { maxAheadBytes = MAX_AHEAD_BYTES } = this.#options;
    this.#maxKeptBytes = Math.min(maxKeptBytes, MAX_KEPT_TOTAL_BYTES / streams.length);
    this.#maxRowBytes = Math.min(maxRowBytes, MAX_KEPT_TOTAL_BYTES / streams.length);
    this.#maxAheadBytes = maxAheadBytes / streams.length;
    const segments = this.#readAhead([...lineOf.keys()], maxAheadBytes);
    const read = (journal: ChunkJournal) => this.#chunkRows(journal, segments, fromLine);
    const routes = new RoutesByLine(
      streams.map((journals) => new RouteRows(journals, { lineOf, read, fromLine })),
    );
    for (let first = routes.take(); first !== undefined; first = routes.take()) {
      if (first.isRead) yield first.takeBefore(routes.firstLine);
      else await first.readOn();
      routes.add(first);
      const pause = timeForMore();
      if (pause !== null) await pause;
    }
  }

  /** Reads the segments in the order in which the lines of their chunks begin, which is roughly the order of their use. */
  #readAhead(
    journals: readonly ChunkJournal[],
    maxBytes: number,
  ): ReadAhead<Segment, SegmentReading> {
    const { blobs, isLastTry } = this.#options;
    const maxKeptBytes = this.#maxKeptBytes;
    const segments = journals.flatMap((journal) => journal.segments);
    return new ReadAhead(segments, {
      limits: { maxCount: blobs.maxReadsAhead, maxBytes },
      bytesOf: ({ bytes }) => bytes,
      read: (segment) => readSegment(segment, { blobs, isLastTry, maxKeptBytes }),
    });
  }

  async *#chunkRows(
    { chunk, segments }: ChunkJournal,
    readings: ReadAhead<Segment, SegmentReading>,
    fromLine: number,
  ): AsyncGenerator<readonly Row[]> {
    const { left, stopReason } = this.#options;
    const { records, lostBlobKeys } = await this.#readRecords({ chunk, segments }, readings);
    const isIncomplete = records.count < chunk.lineCount;
    if (isIncomplete && (stopReason === null || lostBlobKeys.length > 0)) {
      this.incomplete.push({ chunkNumber: chunk.number, lostBlobKeys });
    }
    if (!isIncomplete || left === "omitted") yield* records.rows(fromLine);
    else if (left === "end") yield* this.#rowsToGap(chunk, records);
    else if (left === "rows") yield* this.#rowsWithLeft(chunk, records, lostBlobKeys.length > 0);
  }

  /** Reads the segments. This generator must not do it: while it waits for a slow reader, it would hold the last segment. */
  async #readRecords(
    { chunk, segments }: ChunkJournal,
    readings: ReadAhead<Segment, SegmentReading>,
  ) {
    const { blobs, onDamaged } = this.#options;
    const maxRowBytes = this.#maxRowBytes;
    const records = new ChunkRecords({ blobs, maxRowBytes, maxAheadBytes: this.#maxAheadBytes });
    const lostBlobKeys: string[] = [];
    const totalBytes = segments.reduce((sum, { bytes }) => sum + bytes, 0);
    const isKept = totalBytes <= this.#maxKeptBytes;
    for (const segment of segments) {
      const reading = await readings.take(segment);
      if (reading.ok) records.add(segment, reading, isKept);
      else {
        lostBlobKeys.push(segment.blobKey);
        onDamaged({ chunk: chunk.number, blob: segment.blobKey, problem: reading.problem });
      }
    }
    return { records, lostBlobKeys };
  }

  /** Yields the rows before the first line without a record, and an empty one for that line. */
  async *#rowsToGap(chunk: Chunk, records: ChunkRecords): AsyncGenerator<readonly Row[]> {
    const { blobs, inputBlobKey: key } = this.#options;
    const { lineNumbers } = records;
    let gap = chunk.extents[0]?.firstLine ?? 0;
    if (lineNumbers.has(gap)) {
      const left = await findLeftLines(chunk, lineNumbers, { blobs, key, isLastTry: true });
      gap = left[0]?.number ?? gap;
    }
    for await (const rows of records.rows(1)) {
      yield rows.filter(({ lineNumber }) => lineNumber < gap);
    }
    yield [{ lineNumber: gap, kind: "not_run", bytes: NOTHING }];
  }

  /**
   * Yields the rows with those of unanswered lines. Where a stopped batch lost answers, it is unknown which of its
   * lines ran.
   */
  async *#rowsWithLeft(
    chunk: Chunk,
    records: ChunkRecords,
    isDamaged: boolean,
  ): AsyncGenerator<readonly Row[]> {
    const { blobs, inputBlobKey: key, isLastTry, stopReason } = this.#options;
    const source = { blobs, key, isLastTry };
    const left = await findLeftLines(chunk, records.lineNumbers, source);
    const reason = isDamaged ? null : stopReason;
    const leftRows = new Map(left.map((line) => [line.number, leftRow(line, reason)]));
    const numbers = [...records.lineNumbers, ...leftRows.keys()].sort((a, b) => a - b);
    for (const number of numbers) yield [leftRows.get(number) ?? (await records.row(number))];
  }
}

export const firstLineOf = ({ chunk }: ChunkJournal) => chunk.extents[0]?.firstLine ?? 0;
const lastRunOf = ({ chunk }: ChunkJournal) => chunk.extents.at(-1)?.firstLine ?? 0;

/** Groups the chunks of a batch so that the lines of each group are in the order of the file. */
export function streamsOf(journals: readonly ChunkJournal[]): readonly ChunkJournal[][] {
  return [...Map.groupBy(journals, ({ chunk }) => chunk.model).values()].flatMap((ofRoute) => {
    const streams: ChunkJournal[][] = [];
    for (const journal of ofRoute) {
      const stream = streams.at(-1);
      const last = stream?.at(-1);
      // The chunks of a sample come first, and the others begin before its last line.
      const follows = last !== undefined && firstLineOf(journal) > lastRunOf(last);
      if (stream !== undefined && follows) stream.push(journal);
      else streams.push([journal]);
    }
    return streams;
  });
}

/**
 * Makes the row of a line without a record: it never ran because its batch was stopped or, where `stopReason` is null, its answer
 * is lost.
 */
export function leftRow({ number, customId }: LeftLine, stopReason: StopReason | null): Row {
  const stopped = stopReason === "cancelled" ? BATCH_CANCELLED : BATCH_EXPIRED;
  const why = stopReason === null ? ANSWER_LOST : stopped;
  const bytes = noAnswerLine(
    { lineNumber: number, customId },
    customId === null ? unreadableLine(number) : why,
  );
  return { lineNumber: number, kind: stopReason === null ? "failed" : "not_run", bytes };
}
