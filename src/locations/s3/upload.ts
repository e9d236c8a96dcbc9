/**
 * Writes one object from a stream, in parts if it is large. The server checks every part, and the SHA-256 of the whole is
 * compared before the request that makes the object appear.
 *
 * The id of an upload in parts is saved, so an attempt after a crash goes on: it reads the content from the beginning, and
 * sends the parts that the server does not have, or has with other bytes.
 */
import { createHash } from "node:crypto";
import { buffer } from "node:stream/consumers";
import {
  AbortMultipartUploadCommand,
  type CompletedPart,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  type CreateMultipartUploadCommandInput,
  ListMultipartUploadsCommand,
  ListPartsCommand,
  type Part,
  PutObjectCommand,
  UploadPartCommand,
} from "@aws-sdk/client-s3";
import { isNoSuchUpload } from "../../blobs/s3-error.ts";
import type { ParcelFile } from "../location.ts";
import { checkedBytes, piecesOf } from "../parcel-bytes.ts";
import type { S3Progress, SavedUpload } from "./progress.ts";
import type { S3Sender } from "./sender.ts";

const MIB = 1024 * 1024;
const MIN_PART_BYTES = 8 * MIB;
const MAX_PARTS = 10_000;
/** The most parts of a page of their list: the answer has a bound. */
const PAGE_PARTS = 100;
/** The most pages of a list of parts. Some servers make smaller ones. */
const MAX_PAGES = 200;
/** The most unfinished uploads of an object that are aborted. A crash leaves one. */
const MAX_UNSAVED = 20;
/** The longest tag or checksum that is kept. */
const MAX_TAG = 128;

export interface Target {
  readonly sender: S3Sender;
  /** The bucket, name, metadata and encryption of the object. */
  readonly object: CreateMultipartUploadCommandInput & {
    readonly Bucket: string;
    readonly Key: string;
  };
  readonly sendsChecksums: boolean;
}

/** Says whether the server has confirmed the bytes by a checksum of its own. */
export type Uploaded = "confirmed" | "unconfirmed";

export const isSmall = ({ bytes }: ParcelFile) => bytes <= MIN_PART_BYTES;

export const partBytesFor = (bytes: number) =>
  Math.max(MIN_PART_BYTES, Math.ceil(bytes / MAX_PARTS / MIB) * MIB);

export async function putWhole(target: Target, file: ParcelFile): Promise<Uploaded> {
  const Body = await buffer(checkedBytes(file));
  const checksum = Buffer.from(file.sha256, "hex").toString("base64");
  const check = target.sendsChecksums ? { ChecksumSHA256: checksum } : md5Of(Body);
  const command = new PutObjectCommand({ ...target.object, ...check, Body });
  const stored = await target.sender.sendToEnd(command);
  return stored.ChecksumSHA256 === checksum ? "confirmed" : "unconfirmed";
}

const md5Of = (bytes: Buffer) => ({ ContentMD5: createHash("md5").update(bytes).digest("base64") });

export async function putInParts(
  target: Target,
  file: ParcelFile,
  progress: S3Progress,
): Promise<Uploaded> {
  const upload = await PartedUpload.begin(target, progress);
  let sending: Promise<void> = Promise.resolve();
  try {
    let number = 0;
    for await (const bytes of piecesOf(file, partBytesFor(file.bytes))) {
      await sending;
      sending = upload.put(++number, bytes);
      // The next `await` reports it.
      sending.catch(() => {});
    }
  } finally {
    await sending;
  }
  return upload.complete();
}

/** Aborts an upload. One that has ended is no error. */
export async function abortUpload(
  sender: S3Sender,
  { bucket, key, uploadId }: SavedUpload,
): Promise<void> {
  const command = new AbortMultipartUploadCommand({ Bucket: bucket, Key: key, UploadId: uploadId });
  await sender.send(command).catch((error: unknown) => {
    if (!isNoSuchUpload(error)) throw error;
  });
}

class PartedUpload {
  readonly #target: Target;
  readonly #uploadId: string;
  readonly #listed: ReadonlyMap<number, Part>;
  readonly #parts: CompletedPart[] = [];
  readonly #digests = createHash("sha256");

  private constructor(target: Target, uploadId: string, listed: ReadonlyMap<number, Part>) {
    this.#target = target;
    this.#uploadId = uploadId;
    this.#listed = listed;
  }

  /** Goes on with the saved upload if the server still has it, and begins one otherwise. */
  static async begin(target: Target, progress: S3Progress): Promise<PartedUpload> {
    const { sender, object, sendsChecksums } = target;
    const { Bucket: bucket, Key: key } = object;
    const saved = progress.uploadOf(key);
    if (saved !== null) {
      const listed = await listParts(target, saved.uploadId);
      if (listed !== null) return new PartedUpload(target, saved.uploadId, listed);
    }
    if (progress.mayHaveBegun(key)) await abortUnsaved(sender, { bucket, key });
    await progress.willBegin(key);
    const algorithm = sendsChecksums ? { ChecksumAlgorithm: "SHA256" as const } : {};
    const begun = await sender.send(new CreateMultipartUploadCommand({ ...object, ...algorithm }));
    const uploadId = begun.UploadId ?? "";
    await progress.hasBegun({ bucket, key, uploadId });
    return new PartedUpload(target, uploadId, new Map());
  }

  /** Sends the part, unless the server has it. */
  async put(PartNumber: number, Body: Buffer): Promise<void> {
    const { sender, sendsChecksums } = this.#target;
    const digest = createHash("sha256").update(Body).digest();
    const checksum = digest.toString("base64");
    this.#digests.update(digest);
    const listed = this.#listed.get(PartNumber);
    if (listed !== undefined && isSame(listed, Body, checksum)) {
      this.#add(PartNumber, listed.ETag, checksum);
      return;
    }
    const check = sendsChecksums ? { ChecksumSHA256: checksum } : md5Of(Body);
    const command = new UploadPartCommand({ ...this.#object, PartNumber, Body, ...check });
    const { ETag } = await sender.send(command);
    this.#add(PartNumber, ETag, checksum);
  }

  async complete(): Promise<Uploaded> {
    const MultipartUpload = { Parts: this.#parts };
    const command = new CompleteMultipartUploadCommand({ ...this.#object, MultipartUpload });
    const { ChecksumSHA256: checksum } = await this.#target.sender.sendToEnd(command);
    const expected = `${this.#digests.digest("base64")}-${this.#parts.length}`;
    return checksum === expected ? "confirmed" : "unconfirmed";
  }

  #add(PartNumber: number, ETag: string | undefined, ChecksumSHA256: string): void {
    this.#parts.push({ PartNumber, ETag, ...(this.#target.sendsChecksums && { ChecksumSHA256 }) });
  }

  get #object() {
    const { Bucket, Key } = this.#target.object;
    return { Bucket, Key, UploadId: this.#uploadId };
  }
}

/** The tag of a part is its MD5 in most buckets. If nothing compares, the part is sent again. */
function isSame({ Size, ETag, ChecksumSHA256 }: Part, bytes: Buffer, checksum: string): boolean {
  if (Size !== bytes.length) return false;
  if (ChecksumSHA256 !== undefined) return ChecksumSHA256 === checksum;
  return ETag?.replaceAll('"', "") === createHash("md5").update(bytes).digest("hex");
}

/** Keeps what is compared. A part of a text would keep the whole answer in memory. */
function withoutAnswer({ Size, ETag, ChecksumSHA256 }: Part): Part {
  const copied = (text = "") =>
    text === "" || text.length > MAX_TAG ? undefined : Buffer.from(text).toString();
  return { Size, ETag: copied(ETag), ChecksumSHA256: copied(ChecksumSHA256) };
}

/** Returns the parts by their numbers; null if the server does not have the upload any more. */
async function listParts(target: Target, UploadId: string): Promise<Map<number, Part> | null> {
  const { Bucket, Key } = target.object;
  const parts = new Map<number, Part>();
  let marker: { PartNumberMarker?: string } = {};
  try {
    for (let pageCount = 0; pageCount < MAX_PAGES; pageCount++) {
      const page = { MaxParts: PAGE_PARTS, ...marker };
      const command = new ListPartsCommand({ Bucket, Key, UploadId, ...page });
      const listed = await target.sender.send(command);
      for (const part of listed.Parts ?? []) {
        const { PartNumber: number = 0 } = part;
        if (number >= 1 && number <= MAX_PARTS) parts.set(number, withoutAnswer(part));
      }
      const { IsTruncated, NextPartNumberMarker } = listed;
      if (IsTruncated !== true || NextPartNumberMarker === undefined) break;
      marker = { PartNumberMarker: NextPartNumberMarker };
    }
    return parts;
  } catch (error) {
    if (isNoSuchUpload(error)) return null;
    throw error;
  }
}

/**
 * Aborts uploads of this object, one of which a crash has left between its beginning and the moment when it is saved. The
 * right to list uploads may be missing, and nothing depends on it. Another delivery of the batch, to another name of the same
 * place, may lose its upload. It begins anew then.
 */
export async function abortUnsaved(
  sender: S3Sender,
  { bucket, key }: Omit<SavedUpload, "uploadId">,
): Promise<void> {
  const command = new ListMultipartUploadsCommand({
    Bucket: bucket,
    Prefix: key,
    MaxUploads: MAX_UNSAVED,
  });
  const found = await sender.send(command).catch(() => ({ Uploads: [] }));
  // A server may answer with more than that.
  for (const { Key, UploadId: uploadId } of (found.Uploads ?? []).slice(0, MAX_UNSAVED)) {
    if (Key !== key || uploadId === undefined) continue;
    await abortUpload(sender, { bucket, key, uploadId }).catch(() => {});
  }
}
