/**
 * Reads blobs for work that a missing one would bring to its end. A storage on other machines may say for a while that a blob
 * is missing: a bucket whose copies are behind, or a share with an old list of names. The first times, a missing blob therefore
 * counts as a failure of the work, which is tried again when its lease has run out. Only then the storage has its word taken.
 */
import { Readable } from "node:stream";
import { BlobNotFound, type BlobReader, type Blobs, type ByteRange } from "../../blobs/blobs.ts";

/** Failures after which a missing blob is taken for lost. The lease puts half a minute between two tries. */
const DOUBTED_FAILURES = 2;

/** A blob that is missing, but may be found at the next try. */
class BlobMissing extends Error {
  override readonly name = "BlobMissing";
}

/** Returns the reader for work that has failed so often. */
export function doubted(blobs: Blobs, failureCount: number): BlobReader {
  if (!blobs.mayBeBehind || failureCount >= DOUBTED_FAILURES) return blobs;
  return {
    maxReadsAhead: blobs.maxReadsAhead,
    read: (key, range) => Readable.from(read(blobs, key, range), { objectMode: false }),
    readRange: (key, range) => blobs.readRange(key, range).catch(doubt),
  };
}

async function* read(blobs: Blobs, key: string, range?: ByteRange): AsyncGenerator<Buffer> {
  try {
    yield* blobs.read(key, range) as AsyncIterable<Buffer>;
  } catch (error) {
    doubt(error);
  }
}

function doubt(cause: unknown): never {
  if (!(cause instanceof BlobNotFound)) throw cause;
  throw new BlobMissing(`${cause.message}; it is looked for again`, { cause });
}
