/**
 * The blob keys of journal segments. A key names the lease under which its segment was written, and so tells whether
 * the row of the segment can still be written: only while that lease is held.
 */
import type { BatchId } from "../batch/batch.ts";
import type { ChunkLease } from "./store.ts";

export const journalPrefix = (batchId: BatchId) => `journal/${batchId}/`;

/** `number` counts the segments of one lease. */
export const segmentKey = ({ batchId, chunkNumber, epoch }: ChunkLease, number: number) =>
  `${journalPrefix(batchId)}${chunkNumber}-${epoch}-${number}`;

const SEGMENT_KEY = /^journal\/([^/]+)\/(\d+)-(\d+)-\d+$/;

/** Null when the key is not that of a segment. */
export function leaseOfSegment(blobKey: string): ChunkLease | null {
  const [, batchId, chunkNumber, epoch] = SEGMENT_KEY.exec(blobKey) ?? [];
  if (batchId === undefined) return null;
  return {
    batchId: batchId as BatchId,
    chunkNumber: Number(chunkNumber),
    epoch: Number(epoch),
  };
}
