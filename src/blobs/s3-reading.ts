/**
 * Reads an object, or a range of it, as a stream, with no more in memory than the connection holds. If the connection
 * breaks, or the server closes it because the reader is slow, the reader asks for the remaining bytes over another one.
 * That is safe because blobs never change. Another object is only read while it has the tag with which the reader began.
 * A server that hardly sends anything is given up like one that is away, so that no read holds its caller for ever.
 */
import type { Readable } from "node:stream";
import { GetObjectCommand, HeadObjectCommand, type S3Client } from "@aws-sdk/client-s3";
import type { Clock } from "../clock.ts";
import { TinyPieces } from "../resources/tiny-pieces.ts";
import { BlobNotFound, BlobsUnavailable, BlobTooShort, type ByteRange } from "./blobs.ts";
import {
  blobError,
  isMissing,
  isOutOfRange,
  NotFromBucket,
  PreconditionFailed,
  unavailable,
} from "./s3-error.ts";
import { ReadingRate } from "./s3-rate.ts";

/** The most breaks without a byte between them. The SDK repeats a request only until its answer begins. */
const MAX_BREAKS = 4;

export interface S3Object {
  readonly client: S3Client;
  readonly bucket: string;
  /** The object name, with the prefix of the deployment. */
  readonly path: string;
  /** The key of the blob, without the prefix. */
  readonly key: string;
  /** The tag of the only content to read, if the object may change. */
  readonly etag?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly clock: Pick<Clock, "elapsedMs">;
}

export async function* readObject(object: S3Object, range: ByteRange): AsyncGenerator<Buffer> {
  if (range.start === range.end) await assertExists(object);
  const rate = new ReadingRate(object.clock);
  let at = range.start;
  let breakCount = 0;
  let isWithReader = false;
  while (at < range.end) {
    const found = await rate.during(open(object, { start: at, end: range.end }));
    if (found === null) return;
    try {
      for await (const chunk of arriving(found.body, rate, found.end - at)) {
        at += chunk.length;
        breakCount = 0;
        isWithReader = true;
        yield chunk;
        isWithReader = false;
      }
      if (at < found.end) throw new Error("the answer ended before its last byte");
    } catch (error) {
      // A stream of Node throws at its source when its reader leaves early. The rest is not wanted then.
      if (isWithReader) throw error;
      const isFinal = error instanceof BlobsUnavailable || error instanceof TinyPieces;
      if (isFinal || ++breakCount === MAX_BREAKS) throw unavailable(error);
    }
    if (at >= found.end) return;
  }
}

/** The stream is read by hand, because the time between two chunks is partly the one of the reader. */
async function* arriving(
  body: Readable,
  rate: ReadingRate,
  byteCount: number,
): AsyncGenerator<Buffer> {
  let leftBytes = byteCount;
  const chunks = body[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  try {
    for (;;) {
      const { done, value: chunk } = await rate.during(chunks.next());
      if (done === true) return;
      leftBytes -= chunk.length;
      // Behind the last byte there is nothing more to wait for.
      if (rate.isTooSlowAfter(chunk.length) && leftBytes > 0) {
        throw new BlobsUnavailable("S3: the server sends too slowly", { isRefusal: false });
      }
      yield chunk;
    }
  } finally {
    await chunks.return?.();
  }
}

interface Opened {
  readonly body: Readable;
  /** The position behind the last byte of the body. */
  readonly end: number;
}

/** Returns null if the range is open-ended and the object has no byte after `start`. */
async function open(object: S3Object, { start, end }: ByteRange): Promise<Opened | null> {
  const { client, bucket, path, key, etag, signal } = object;
  const isWhole = start === 0 && end === Number.POSITIVE_INFINITY;
  const last = Number.isFinite(end) ? end - 1 : "";
  try {
    const found = await client.send(
      new GetObjectCommand({
        Bucket: bucket,
        Key: path,
        ...(!isWhole && { Range: `bytes=${start}-${last}` }),
        ...(etag !== undefined && { IfMatch: etag }),
      }),
      ...(signal === undefined ? [] : [{ abortSignal: signal }]),
    );
    const body = found.Body as Readable;
    if (isOther(found.ETag, etag)) {
      body.destroy();
      throw new PreconditionFailed(`${key} has another tag`);
    }
    const total = isWhole ? found.ContentLength : totalBytesIn(found.ContentRange, { start, end });
    if (total === undefined) {
      body.destroy();
      const words = `the server answers with another range of ${key}, or with none`;
      throw unavailable(new NotFromBucket(words));
    }
    if (Number.isFinite(end) && total < end) {
      body.destroy();
      throw new BlobTooShort(key, end);
    }
    return { body, end: Math.min(end, total) };
  } catch (error) {
    if (error instanceof BlobTooShort) throw error;
    if (!isOutOfRange(error)) throw blobError(error, key);
    if (Number.isFinite(end)) throw new BlobTooShort(key, end);
    return null;
  }
}

/** Whether a tag is not the wanted one. A proxy may mark it as weak. */
const isOther = (tag: string | undefined, wanted: string | undefined): boolean =>
  tag !== undefined && wanted !== undefined && strong(tag) !== strong(wanted);

const strong = (tag: string) => tag.replace(/^W\//, "");

/**
 * Returns 100 for `bytes 0-9/100`, and undefined for a range that begins elsewhere or goes further than the one asked for: a
 * cache before the server may answer with its own blocks, whose bytes would be taken for others. A shorter range is the
 * beginning of what was asked for.
 */
function totalBytesIn(contentRange = "", { start, end }: ByteRange): number | undefined {
  const [first, last, total] =
    /^bytes (\d+)-(\d+)\/(\d+)$/.exec(contentRange)?.slice(1).map(Number) ?? [];
  return first === start && last !== undefined && last < end ? total : undefined;
}

async function assertExists({ client, bucket, path, key }: S3Object): Promise<void> {
  await client.send(new HeadObjectCommand({ Bucket: bucket, Key: path })).catch((error) => {
    throw isMissing(error) ? new BlobNotFound(key, { cause: error }) : unavailable(error);
  });
}
