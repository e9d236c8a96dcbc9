/**
 * A place for blobs, before a server takes it: the data folder or a bucket. It says whether an installation has it
 * already. Nothing here may change it before `open`.
 */
import { join } from "node:path";
import { type Blobs, BlobsUnavailable } from "../../blobs/blobs.ts";
import { openDiskBlobs, wasOpened } from "../../blobs/disk.ts";
import { hasFiles } from "../../blobs/file-system.ts";
import type { OnS3Request, S3Options } from "../../blobs/s3-client.ts";
import { bucketOptions, type StorageConfig } from "../../config/storage.ts";
import { BLOBS } from "./data-folder.ts";
import { type DatabaseDeps, FOLDER_PLACE } from "./database.ts";

export interface BucketDeps extends Pick<DatabaseDeps, "clock" | "closers"> {
  /** The callback for each request to a bucket. */
  readonly onS3Request?: OnS3Request;
}

export interface BlobPlace {
  /** Identifies the place to a database. */
  readonly name: string;
  /** The name of the place in messages. */
  readonly path: string;
  /** Says what an operator can change to begin anew. */
  readonly howToBeginAnew: string;
  /** Says what an operator can do about files that are in another place than this one. */
  readonly howToFind: string;
  isEmpty(): Promise<boolean>;
  /** Whether a server has used it before; true for a place that does not answer. */
  wasUsed(): Promise<boolean>;
  /** Returns the sign that an installation has the place, or null. */
  findSign(): Promise<string | null>;
  open(): Promise<Blobs>;
}

export function folderIn(dir: string, isShared: boolean): BlobPlace {
  const path = join(dir, BLOBS);
  return {
    name: FOLDER_PLACE,
    path,
    howToBeginAnew: "remove that folder",
    howToFind: "mount the disk",
    isEmpty: async () => !hasFiles(path),
    wasUsed: async () => wasOpened(path),
    // Servers without files are kept apart by the lock of the folder or by its mark.
    findSign: async () => (hasFiles(path) ? `there are files in ${path}` : null),
    open: () => openDiskBlobs(path, { isShared }),
  };
}

/** Loads the SDK only if there is a bucket, because of its memory. */
export async function bucketOf(
  storage: StorageConfig,
  { clock, closers, onS3Request }: BucketDeps,
): Promise<BlobPlace> {
  const { S3Blobs } = await import("../../blobs/s3.ts");
  const blobs = new S3Blobs(s3Options(storage), clock, onS3Request);
  closers.add("bucket", () => blobs.close());
  const path = `s3://${storage.bucket}/${storage.prefix}`;
  return {
    name: path,
    path,
    howToBeginAnew: "choose another storage.prefix",
    howToFind: "correct storage.endpoint",
    isEmpty: () => blobs.isEmpty(),
    wasUsed: () => blobs.wasUsed().catch(() => true),
    findSign: async () => {
      if (!(await blobs.isEmpty())) return `there are files in ${path}`;
      return (await blobs.wasUsed()) ? `a server has used ${path}` : null;
    },
    open: async () => blobs,
  };
}

/**
 * Leaves the sign of a server at once. Two new servers with the same prefix by mistake would otherwise both start before
 * the first upload, and each would take the files of the other one for garbage. A place that is away gets its sign later.
 */
export async function markUse(place: BlobPlace, blobs: Blobs): Promise<string | null> {
  if (await place.wasUsed()) return null;
  return blobs.ping().then(
    () => null,
    (cause: unknown) => (isAway(cause) ? null : cannotUse(place, cause)),
  );
}

export const isAway = (cause: unknown) => cause instanceof BlobsUnavailable && !cause.isRefusal;

export const cannotUse = ({ path }: BlobPlace, cause: unknown) =>
  `cannot use ${path}: ${(cause as Error).message}`;

function s3Options(storage: StorageConfig): S3Options {
  const { bucket = "", prefix, part_bytes: partBytes } = storage;
  const linkSeconds = storage.presigned_downloads
    ? Math.ceil(storage.presigned_seconds)
    : undefined;
  return { bucket, prefix, partBytes, linkSeconds, ...bucketOptions(storage) };
}
