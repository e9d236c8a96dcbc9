/**
 * Reads and checks segments. A segment is a run of records, written as one blob and never changed. A record is a
 * header line `<line number> <o|e> <bytes>[ <names>]\n`, then that many bytes. They are the finished row of the output
 * (`o`) or the error (`e`) file. The names are those of an answer, as a JSON array, so that the merge need not read it again.
 *
 * The row of the segment in the store has its length and its CRC-32. Every reader can therefore tell a whole segment
 * from a damaged one. No part of a damaged segment may be used.
 */
import { crc32 } from "node:zlib";
import type { AnswerNames } from "../batch/batch.ts";
import { BlobNotFound, type BlobReader, BlobsUnavailable, BlobTooShort } from "../blobs/blobs.ts";
import { PIECE_BYTES, piecesOf, timeForMore } from "../resources/time-slice.ts";
import type { Segment } from "../store/chunks.ts";

/** The place of a record in a segment. */
export interface RecordExtent {
  readonly lineNumber: number;
  readonly succeeded: boolean;
  readonly start: number;
  readonly end: number;
  /** Null for a record without names, such as one that an older version wrote. */
  readonly names: AnswerNames | null;
}

export type SegmentReading =
  | { readonly ok: true; readonly bytes: Buffer; readonly records: readonly RecordExtent[] }
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
}

/** Reads a segment and checks it. Throws on errors that may pass. */
export async function readSegment(
  segment: Segment,
  reader: SegmentReader,
): Promise<SegmentReading> {
  const { blobKey, bytes, crc32: expected } = segment;
  try {
    const found = await reader.blobs.readRange(blobKey, { start: 0, end: bytes });
    if (expected !== null && (await crc32Of([found])) !== expected) {
      return damaged("its checksum is another one");
    }
    const records = recordsIn(found);
    if (records === null) return damaged("it is not a run of records");
    return { ok: true, bytes: found, records };
  } catch (error) {
    if (!(await isLost(error, reader.blobs)) && !reader.isLastTry) throw error;
    return damaged((error as Error).message);
  }
}

const damaged = (problem: string): SegmentReading => ({ ok: false, problem });

/** Whether bytes that were stored will never come back. Throws when the whole storage is away. */
export async function isLost(error: unknown, blobs: BlobReader): Promise<boolean> {
  if (error instanceof BlobsUnavailable) throw error;
  if (error instanceof BlobTooShort) return true;
  if (!(error instanceof BlobNotFound)) return false;
  await blobs.ping();
  return true;
}

const NEWLINE = 0x0a;
const HEADER = /^(\d+) ([oe]) (\d+)(?: (\[.*\]))?$/s;

/** Returns the records in the order in which they were written; null when the bytes are not records. */
function recordsIn(segment: Buffer): RecordExtent[] | null {
  const records: RecordExtent[] = [];
  let at = 0;
  while (at < segment.length) {
    const headerEnd = segment.indexOf(NEWLINE, at);
    if (headerEnd === -1) return null;
    const header = HEADER.exec(segment.toString("utf8", at, headerEnd));
    if (header === null) return null;
    const [, lineNumber, kind, bytes, names] = header;
    const start = headerEnd + 1;
    const end = start + Number(bytes);
    if (!Number.isSafeInteger(end) || end > segment.length) return null;
    records.push({
      lineNumber: Number(lineNumber),
      succeeded: kind === "o",
      start,
      end,
      names: names === undefined ? null : namesIn(names),
    });
    at = end;
  }
  return records;
}
