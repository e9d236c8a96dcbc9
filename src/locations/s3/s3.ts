/**
 * A bucket as a location. The objects of a parcel are written one after another, and the manifest comes last: a parcel
 * is there once its manifest is.
 *
 * Each object carries the SHA-256 of its content as metadata. So a repeated delivery finds what is there. Where the server
 * confirms no checksum, the object is read again and compared.
 *
 * Two locations may be one place, so two deliveries of a batch may write there at a time. An object also carries the delivery
 * that has made it, and no other one removes it.
 */
import { Readable } from "node:stream";
import {
  DeleteObjectCommand,
  GetObjectCommand,
  HeadObjectCommand,
  type S3Client,
} from "@aws-sdk/client-s3";
import {
  encryptionOf,
  openS3Client,
  type S3ClientOptions,
  type S3Encryption,
} from "../../blobs/s3-client.ts";
import { isMissing, isPage, statusOf } from "../../blobs/s3-error.ts";
import { readObject } from "../../blobs/s3-reading.ts";
import type { Clock } from "../../clock.ts";
import {
  assertParcel,
  type Delivered,
  type DeliveryCall,
  type Location,
  type LocationCall,
  LocationError,
  type LocationFile,
  type Parcel,
  type ParcelFile,
  partsOf,
} from "../location.ts";
import type { LocationPath } from "../location-path.ts";
import { isContentOf, untilAborted } from "../parcel-bytes.ts";
import { watched } from "../watched-file.ts";
import { boundAnswers } from "./bounded-answers.ts";
import { parseSaved, S3Progress } from "./progress.ts";
import { s3Error, writeError } from "./s3-error.ts";
import { inTime, S3Sender } from "./sender.ts";
import { abortUnsaved, abortUpload, isSmall, putInParts, putWhole, type Target } from "./upload.ts";

export interface S3LocationOptions extends S3ClientOptions {
  readonly name: string;
  readonly bucket: string;
  /** It is empty, or a path that ends in `/`. */
  readonly prefix: string;
  readonly encryption?: S3Encryption | undefined;
  readonly clock: Pick<Clock, "after" | "elapsedMs">;
}

export class S3Location implements Location {
  readonly kind = "s3";
  readonly name: string;
  readonly #client: S3Client;
  readonly #options: S3LocationOptions;

  constructor(options: S3LocationOptions) {
    this.name = options.name;
    this.#options = options;
    this.#client = openS3Client(options, () => {});
    boundAnswers(this.#client);
  }

  async open(path: LocationPath, { signal }: LocationCall): Promise<LocationFile> {
    const { bucket, prefix } = this.#options;
    const key = prefix + path;
    const what = `file ${path} in ${this.name}`;
    const found = await findNamed(this.#sender(signal), { Bucket: bucket, Key: key }).catch(
      (error: unknown) => {
        throw s3Error(error, what, signal);
      },
    );
    const { ContentLength: bytes = null, ETag: etag, VersionId: version } = found;
    const { clock } = this.#options;
    const object = { client: this.#client, bucket, path: key, key: path, etag, signal, clock };
    return {
      bytes,
      revision: version ?? etag?.replaceAll('"', "") ?? null,
      content: translated(
        readObject(object, { start: 0, end: bytes ?? Number.POSITIVE_INFINITY }),
        {
          what,
          signal,
        },
      ),
      [Symbol.asyncDispose]: async () => {},
    };
  }

  async deliver(parcel: Parcel, { signal, progress }: DeliveryCall): Promise<Delivered> {
    assertParcel(parcel);
    const { bucket, prefix } = this.#options;
    const folder = `${prefix}${partsOf(parcel).join("/")}/`;
    const manifest = `${folder}${parcel.files.at(-1)?.name}`;
    const { deliveryId } = parcel;
    const saved = new S3Progress(progress, { bucket, deliveryId, manifest });
    // Until then the other delivery may be given up, and remove what it has made.
    const isFinished = ({ sender }: Target) =>
      isMissingObject(sender, bucket, manifest).then(
        (isMissing) => !isMissing,
        () => false,
      );
    for (const source of parcel.files.map(watched)) {
      const { file } = source;
      const target = this.#target(folder + file.name, { file, deliveryId, signal });
      try {
        signal.throwIfAborted();
        const found = await this.#find(target, file, signal);
        const isThere = found === "same" || (found === "of_other" && (await isFinished(target)));
        if (isThere) continue;
        if (found !== "other") await saved.willMake(target.object.Key);
        await this.#put(target, file, { signal, saved });
      } catch (error) {
        if (source.failure !== null) throw source.failure.reason;
        throw writeError(error, `${file.name} in ${this.name}`, signal);
      }
    }
    return { address: `s3://${bucket}/${folder}` };
  }

  /**
   * Removes what the delivery has made, unless the parcel is complete. What was there before it stays. Its manifest may have
   * arrived after the other objects were removed, and says then what is not so.
   */
  async discard(saved: string, { signal }: LocationCall): Promise<void> {
    const sender = this.#sender(signal);
    const { bucket: Bucket, deliveryId, upload, beginning, made, manifest } = parseSaved(saved);
    const find = async (Key: string) => {
      const found = await headOf(sender, { Bucket, Key });
      return { Key, isThere: found !== null, isOwn: found?.Metadata?.[MADE_BY] === deliveryId };
    };
    try {
      if (upload !== null) await abortUpload(sender, upload);
      if (beginning !== null) await abortUnsaved(sender, { bucket: Bucket, key: beginning });
      const { isThere, isOwn } = await find(manifest);
      if (isThere && !isOwn) return;
      const objects = [];
      for (const key of made.toReversed()) objects.push(await find(key));
      if (isThere && objects.every((object) => object.isThere)) return;
      for (const { Key, isOwn } of objects) {
        if (isOwn) await sender.send(new DeleteObjectCommand({ Bucket, Key }));
      }
    } catch (error) {
      throw s3Error(error, this.name, signal);
    }
  }

  close(): void {
    this.#client.destroy();
  }

  async #put(
    target: Target,
    file: ParcelFile,
    { signal, saved }: LocationCall & { readonly saved: S3Progress },
  ): Promise<void> {
    const put = () => (isSmall(file) ? putWhole(target, file) : putInParts(target, file, saved));
    const uploaded = await put().catch(async (error: unknown) => {
      // The answer was lost, or belongs to a request that the SDK has repeated.
      if (signal.aborted || !mayBeStored(error)) throw error;
      const found = await this.#find(target, file, signal).catch(() => null);
      if (found === "same") return "confirmed" as const;
      throw error;
    });
    if (uploaded === "confirmed" || (await this.#holds(target, file, signal))) return;
    // Its metadata says that it has the right bytes, so it must not stay.
    const { Bucket, Key } = target.object;
    await target.sender.send(new DeleteObjectCommand({ Bucket, Key }));
    throw new LocationError("unavailable", `${file.name} was not stored as it was sent`);
  }

  async #find(target: Target, file: ParcelFile, signal: AbortSignal): Promise<Found> {
    const { Bucket, Key } = target.object;
    const head = new HeadObjectCommand({ Bucket, Key, ChecksumMode: "ENABLED" });
    const found = await target.sender.send(head).catch((error: unknown) => {
      if (isMissing(error)) return "missing" as const;
      // Without the right to list, a bucket answers 403 for a missing object.
      if (statusOf(error) === 403) return "other" as const;
      throw error;
    });
    if (typeof found === "string") return found;
    const { ContentLength: bytes, Metadata: metadata, ChecksumSHA256: checksum } = found;
    if (bytes !== file.bytes || metadata?.["sha256"] !== file.sha256) return "other";
    const isSame = checksum !== undefined || (await this.#holds(target, file, signal));
    if (!isSame) return "other";
    return metadata[MADE_BY] === target.object.Metadata?.[MADE_BY] ? "same" : "of_other";
  }

  /** Reads the object again. One that was just written may not show yet. */
  #holds(target: Target, file: ParcelFile, signal: AbortSignal): Promise<boolean> {
    const { clock } = this.#options;
    return inTime({ clock, signal, bytes: file.bytes }, (limited) =>
      this.#isSame(target, file, limited),
    ).catch((error: unknown) => {
      if (!(error instanceof Error && isMissing(error.cause))) throw error;
      const words = `${file.name} was stored, and the server does not find it`;
      throw new LocationError("unavailable", words, { cause: error });
    });
  }

  #isSame(target: Target, file: ParcelFile, signal: AbortSignal): Promise<boolean> {
    const { Bucket: bucket, Key: key } = target.object;
    const { clock } = this.#options;
    const object = { client: this.#client, bucket, path: key, key: file.name, signal, clock };
    const content = readObject(object, { start: 0, end: Number.POSITIVE_INFINITY });
    return isContentOf(file, untilAborted(content, signal));
  }

  #target(
    Key: string,
    {
      file,
      deliveryId,
      signal,
    }: LocationCall & { readonly file: ParcelFile; readonly deliveryId: string },
  ): Target {
    const { bucket: Bucket, encryption, sendsChecksums } = this.#options;
    const object = {
      Bucket,
      Key,
      Metadata: { sha256: file.sha256, [MADE_BY]: deliveryId },
      ...encryptionOf(encryption),
    };
    return { sender: this.#sender(signal), object, sendsChecksums };
  }

  #sender(signal: AbortSignal): S3Sender {
    return new S3Sender(this.#client, this.#options.clock, signal);
  }
}

/** The metadata that names the delivery which has written an object. */
const MADE_BY = "batchd-delivery";

/**
 * What is at the place of a file: nothing, the file, the file as another delivery has made it, or something else. It may be
 * unknown which, and counts as else then.
 */
type Found = "missing" | "same" | "of_other" | "other";

interface ObjectName {
  readonly Bucket: string;
  readonly Key: string;
}

/**
 * Rejects with the word of the bucket itself if there is no such object. A proxy whose server is away answers a HEAD in the same
 * way, so the object is asked for once more.
 */
async function findNamed(sender: S3Sender, object: ObjectName) {
  const head = new HeadObjectCommand(object);
  try {
    return await sender.send(head);
  } catch (error) {
    if (!isMissing(error)) throw error;
    const { Body } = await sender.send(new GetObjectCommand({ ...object, Range: "bytes=0-0" }));
    if (Body instanceof Readable) Body.destroy();
    return sender.send(head);
  }
}

const headOf = (sender: S3Sender, object: ObjectName) =>
  findNamed(sender, object).catch((error: unknown) => {
    if (isMissing(error) && !isPage(error)) return null;
    throw error;
  });

const isMissingObject = async (sender: S3Sender, Bucket: string, Key: string): Promise<boolean> =>
  (await headOf(sender, { Bucket, Key })) === null;

/** A server that has answered with another status has not stored the object. */
const mayBeStored = (error: unknown) =>
  error instanceof Error &&
  !(error instanceof LocationError) &&
  (error.name === "NoSuchUpload" || isMissing(error) || statusOf(error) === undefined);

async function* translated(
  content: AsyncIterable<Buffer>,
  { what, signal }: { readonly what: string; readonly signal: AbortSignal },
): AsyncGenerator<Buffer> {
  try {
    yield* untilAborted(content, signal);
  } catch (error) {
    throw s3Error(error, what, signal);
  }
}
