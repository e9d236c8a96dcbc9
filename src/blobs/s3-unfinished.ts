/**
 * Removes uploads to a bucket that have begun and will not end. A bucket keeps their parts, and asks money for them, until
 * they are aborted. An upload may only be aborted when the store proves that its writer is dead, or when its blob exists: a
 * key is written once, so such an upload is a repeated request whose first answer was lost.
 *
 * The store knows nothing of an upload that is no blob, such as one of a deployment or a location whose prefix lies below this
 * one. Its writer may be alive, so it stays.
 */
import { isDeepStrictEqual } from "node:util";
import {
  AbortMultipartUploadCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  type MultipartUpload,
  type S3Client,
} from "@aws-sdk/client-s3";
import { BLOB_PREFIXES, type FindGarbage } from "./blobs.ts";
import { answered, isMissing, isNoSuchUpload, unavailable } from "./s3-error.ts";

interface Place {
  readonly client: S3Client;
  readonly bucket: string;
  /** What all keys of the blobs begin with in the bucket. */
  readonly prefix: string;
}

export async function removeUnfinished(place: Place, findGarbage: FindGarbage): Promise<void> {
  for await (const uploads of unfinishedIn(place)) {
    const keys = [...new Set(uploads.map(({ key }) => key))];
    const garbage = new Set(await findGarbage(keys));
    for (const key of keys) {
      if (!garbage.has(key) && (await exists(place, key))) garbage.add(key);
    }
    for (const { key, uploadId } of uploads) {
      if (garbage.has(key)) await abort(place, key, uploadId);
    }
  }
}

interface Markers {
  readonly KeyMarker: string | undefined;
  readonly UploadIdMarker: string | undefined;
}

const isOfBlob = (key: string) => BLOB_PREFIXES.some((prefix) => key.startsWith(prefix));

/** Yields the unfinished uploads of blobs, a page at a time. */
async function* unfinishedIn({
  client,
  bucket,
  prefix,
}: Place): AsyncGenerator<{ key: string; uploadId: string }[]> {
  const query = { Bucket: bucket, Prefix: prefix };
  let markers: Markers = { KeyMarker: undefined, UploadIdMarker: undefined };
  for (;;) {
    const command = new ListMultipartUploadsCommand({ ...query, ...markers });
    const page = await answered(client.send(command));
    yield (page.Uploads ?? []).flatMap(({ Key = "", UploadId = "" }: MultipartUpload) => {
      const key = Key.slice(prefix.length);
      return isOfBlob(key) && UploadId !== "" ? [{ key, uploadId: UploadId }] : [];
    });
    const next = { KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker };
    // A server that goes in circles would be asked for ever.
    if (page.IsTruncated !== true || isDeepStrictEqual(next, markers)) return;
    markers = next;
  }
}

async function exists(place: Place, key: string): Promise<boolean> {
  try {
    await place.client.send(new HeadObjectCommand(objectIn(place, key)));
    return true;
  } catch (error) {
    if (isMissing(error)) return false;
    throw unavailable(error);
  }
}

async function abort(place: Place, key: string, UploadId: string): Promise<void> {
  const command = new AbortMultipartUploadCommand({ ...objectIn(place, key), UploadId });
  await place.client.send(command).catch((error: unknown) => {
    if (!isNoSuchUpload(error)) throw unavailable(error);
  });
}

/** The bucket has listed the key below the prefix. Another tool may have made it, so it need not be one of a blob. */
function objectIn({ bucket, prefix }: Place, key: string): { Bucket: string; Key: string } {
  return { Bucket: bucket, Key: prefix + key };
}
