/**
 * Reads and checks segments. A segment is a run of records, written as one blob and never changed. A record is a
 * header line `<line number> <o|e> <bytes>[ <names>]\n`, then that many bytes. They are the finished row of the output
 * (`o`) or the error (`e`) file. The names are those of an answer, as a JSON array, so that the merge need not read it again.
 *
 * The row of the segment in the store has its length and its CRC-32. Every reader can therefore tell a whole segment
 * from a damaged one. No part of a damaged segment may be used.
 */
import { crc32 } from "node:zlib";
import type { AnswerNames } from "../../batch/batch.ts";
import {
  BlobNotFound,
  type BlobReader,
  BlobsUnavailable,
  BlobTooShort,
} from "../../blobs/blobs.ts";
import { PIECE_BYTES, piecesOf, timeForMore } from "../../resources/time-slice.ts";
import type { Segment } from "../../store/chunks.ts";

/** The place of a record in a segment. */
export interface RecordExtent {
  readonly lineNumber: number;
  readonly succeeded: boolean;
  readonly start: number;
  readonly end: number;
  /** It is null for a record without names, such as one that an older version wrote. */
  readonly names: AnswerNames | null;
}

export type SegmentReading =
  | {
      readonly ok: true;
      /** It is null for a segment that is longer than asked for. */
      readonly bytes: Buffer | null;
      readonly records: readonly RecordExtent[];
    }
  /** The segment will never be readable: `problem` is for the log. */
  | { readonly ok: false; readonly problem: string };

interface Headed {
  readonly lineNumber: number;
  readonly succeeded: boolean;
  readonly names?: AnswerNames | undefined;
}

export function recordHeader({ lineNumber, succeeded, names }: Headed, rowBytes: number): string {
  const tail = names === undefined ? "" : ` ${spellingOf(names)}`;
  return `${lineNumber} ${succeeded ? "o" : "e"} ${rowBytes}${tail}\n`;
}

/** The names that were spelled or read last. Most answers have the same. */
let latest: { readonly names: AnswerNames; readonly spelling: string } | null = null;

function spellingOf(names: AnswerNames): string {
  if (latest?.names !== names) {
    latest = { names, spelling: JSON.stringify([names.model, names.fingerprint]) };
  }
  return latest.spelling;
}

function namesIn(spelling: string): AnswerNames {
  if (latest?.spelling !== spelling) {
    const [model, fingerprint] = JSON.parse(spelling) as (string | null)[];
    latest = { names: { model: model ?? null, fingerprint: fingerprint ?? null }, spelling };
  }
  return latest.names;
}

/** Computes the checksum in slices: a segment may hold several answers of 60 MB. */
export async function crc32Of(parts: readonly Buffer[]): Promise<number> {
  let sum = 0;
  let bytesInSlice = 0;
  for (const part of parts) {
    for (const piece of part.length <= PIECE_BYTES ? [part] : piecesOf(part)) {
      sum = crc32(piece, sum);
      bytesInSlice += piece.length;
      if (bytesInSlice < PIECE_BYTES) continue;
      bytesInSlice = 0;
      await timeForMore();
    }
  }
  return sum;
}

export interface SegmentReader {
  readonly blobs: BlobReader;
  /** Whether an error that might pass, such as EIO, counts as damage. After enough tries it will not pass. */
  readonly isLastTry: boolean;
  /** The bytes of a longer segment are not kept, because it may hold several answers of 60 MB; left out where all are. */
  readonly maxKeptBytes?: number;
}

/** Reads a segment and checks it. Throws on errors that may pass. */
export async function readSegment(
  segment: Segment,
  reader: SegmentReader,
): Promise<SegmentReading> {
  const { blobKey, bytes, crc32: expected } = segment;
  try {
    if (bytes > (reader.maxKeptBytes ?? bytes)) return await readThrough(segment, reader.blobs);
    const found = await reader.blobs.readRange(blobKey, { start: 0, end: bytes });
    if (expected !== null && (await crc32Of([found])) !== expected) {
      return damaged("its checksum is another one");
    }
    const records = recordsIn(found);
    if (records === null) return damaged("it is not a run of records");
    return { ok: true, bytes: found, records };
  } catch (error) {
    if (!isLost(error) && !reader.isLastTry) throw error;
    return damaged((error as Error).message);
  }
}

/** Reads and checks a segment piece by piece. */
async function readThrough(
  { blobKey, bytes, crc32: expected }: Segment,
  blobs: BlobReader,
): Promise<SegmentReading> {
  const finder = new RecordFinder(bytes);
  let sum = 0;
  for await (const piece of blobs.read(blobKey, {
    start: 0,
    end: bytes,
  }) as AsyncIterable<Buffer>) {
    sum = crc32(piece, sum);
    finder.push(piece);
    await timeForMore();
  }
  if (expected !== null && sum !== expected) return damaged("its checksum is another one");
  const records = finder.end();
  return records === null
    ? damaged("it is not a run of records")
    : { ok: true, bytes: null, records };
}

const damaged = (problem: string): SegmentReading => ({ ok: false, problem });

/** Whether bytes that were stored will never come back. Throws when the whole storage is away. */
export function isLost(error: unknown): boolean {
  if (error instanceof BlobsUnavailable) throw error;
  return error instanceof BlobTooShort || error instanceof BlobNotFound;
}

const NEWLINE = 0x0a;
const NOTHING: Buffer = Buffer.alloc(0);
const HEADER = /^(\d+) ([oe]) (\d+)(?: (\[.*\]))?$/s;

/** No header is longer: the names in it are bounded. Bytes that are not records may have no newline. */
const MAX_HEADER_BYTES = 1024 * 1024;

/** Returns the records in the order in which they were written; null when the bytes are not records. */
function recordsIn(segment: Buffer): readonly RecordExtent[] | null {
  const finder = new RecordFinder(segment.length);
  finder.push(segment);
  return finder.end();
}

/** Finds the records in the pieces of a segment. */
class RecordFinder {
  readonly #segmentBytes: number;
  readonly #records: RecordExtent[] = [];
  #isSound = true;
  /** The offset of the next piece. */
  #at = 0;
  /** The end of the last record. */
  #end = 0;
  /** The beginning of a header that goes on in the next piece. */
  #header = NOTHING;

  constructor(segmentBytes: number) {
    this.#segmentBytes = segmentBytes;
  }

  push(piece: Buffer): void {
    let from = Math.max(0, this.#end - this.#at);
    while (this.#isSound && from < piece.length) {
      const newline = piece.indexOf(NEWLINE, from);
      const part = piece.subarray(from, newline === -1 ? piece.length : newline);
      const header = this.#header.length === 0 ? part : Buffer.concat([this.#header, part]);
      this.#header = newline === -1 ? header : NOTHING;
      if (newline === -1) {
        this.#isSound = header.length <= MAX_HEADER_BYTES;
        break;
      }
      this.#isSound = this.#add(header.toString(), this.#at + newline + 1);
      from = this.#end - this.#at;
    }
    this.#at += piece.length;
  }

  end(): readonly RecordExtent[] | null {
    const isWhole = this.#header.length === 0 && this.#end === this.#segmentBytes;
    return this.#isSound && isWhole ? this.#records : null;
  }

  /** Adds the record behind a header. Returns false when it cannot be one. */
  #add(text: string, start: number): boolean {
    const header = HEADER.exec(text);
    if (header === null) return false;
    const [, lineNumber, kind, bytes, names] = header;
    const end = start + Number(bytes);
    if (!Number.isSafeInteger(end) || end > this.#segmentBytes) return false;
    this.#records.push({
      lineNumber: Number(lineNumber),
      succeeded: kind === "o",
      start,
      end,
      names: names === undefined ? null : namesIn(names),
    });
    this.#end = end;
    return true;
  }
}
