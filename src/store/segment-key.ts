/**
 * This file makes and reads the blob keys of journal segments. A key names the lease under which its segment was
 * written. The row of the segment can be written only while that lease is held, so the key alone tells whether a row
 * can still follow.
 */
import type { BatchId } from "../batch/batch.ts";
import type { ChunkLease } from "./leases.ts";

export const journalPrefix = (batchId: BatchId) => `journal/${batchId}/`;

/** `number` counts the segments of one lease. */
export const segmentKey = ({ batchId, chunkNumber, epoch }: ChunkLease, number: number) =>
  `${journalPrefix(batchId)}${chunkNumber}-${epoch}-${number}`;

const SEGMENT_KEY = /^journal\/([^/]+)\/(\d+)-(\d+)-\d+$/;

/** Returns null when the key does not belong to a segment. */
export function leaseOfSegment(blobKey: string): ChunkLease | null {
  const [, batchId, chunkNumber, epoch] = SEGMENT_KEY.exec(blobKey) ?? [];
  if (batchId === undefined) return null;
  return {
    batchId: batchId as BatchId,
    chunkNumber: Number(chunkNumber),
    epoch: Number(epoch),
  };
}
