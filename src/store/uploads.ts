/**
 * The part of the store that keeps uploads: large files that come in parts. Parts may arrive side by side and in any
 * order. The request that completes the upload says which parts make the file, and in what order.
 */
import type { FileId, PartId, ScopedId, StoredFile, UploadId } from "../batch/batch.ts";
import type { FilePurpose } from "../contract/file.ts";
import type { UPLOAD_STATUSES } from "../contract/upload.ts";
import type { FileTerms } from "./files.ts";
import type { ByteQuota } from "./quotas.ts";

export type UploadStatus = (typeof UPLOAD_STATUSES)[number];

/** A large file on its way in, part by part. */
export interface Upload {
  readonly id: UploadId;
  readonly project: string;
  readonly filename: string;
  readonly purpose: FilePurpose;
  /** The size of the whole file, as the client states it. */
  readonly bytes: number;
  readonly mimeType: string;
  readonly status: UploadStatus;
  readonly createdAtMs: number;
  readonly expiresAtMs: number;
  /** The lifetime of the file to be, from its creation; null leaves it to the server. */
  readonly fileExpiresAfterSeconds: number | null;
  /** The id is set when the upload is completed. */
  readonly fileId: FileId | null;
}

export interface UploadPart {
  readonly id: PartId;
  readonly uploadId: UploadId;
  readonly bytes: number;
  readonly blobKey: string;
  readonly createdAtMs: number;
}

/** What became of a part: it is stored, or the upload has as many as it may, or takes none any more. */
export type PartOutcome = "stored" | "full" | "refused";

/** The row of an ended upload is kept so long after its time: a client that lost an answer learns what became of it. */
export const UPLOAD_KEPT_MS = 24 * 60 * 60 * 1000;

export interface UploadStore {
  /** Rejects with `QuotaExceeded` when the project has as many files and pending uploads together as it may have files. */
  insertUpload(upload: Upload, terms?: FileTerms): Promise<void>;
  findUpload(upload: ScopedId<"upload">): Promise<Upload | null>;
  /**
   * Returns `full` when the upload has `UPLOAD_MAX_PARTS`, and `refused` when it is not pending, or has expired, or the intent of
   * the part was revoked. Rejects with `QuotaExceeded` when the project would have more bytes than it may.
   */
  insertPartIfPending(part: UploadPart, limit?: ByteQuota): Promise<PartOutcome>;
  /** Yields the parts of an upload page by page, in the order of their arrival. */
  partPages(uploadId: UploadId): AsyncIterable<readonly UploadPart[]>;
  /**
   * Moves `pending → completed` and publishes the file, with the receipt of its idempotency key, if it came with one. Returns
   * false where {@link insertPartIfPending} returns `refused`, and rejects as `insertFileIfDeclared` does.
   */
  completeUploadIfPending(
    upload: ScopedId<"upload">,
    file: StoredFile,
    terms?: FileTerms,
  ): Promise<boolean>;
  /** Moves `pending → cancelled`. */
  cancelUploadIfPending(upload: ScopedId<"upload">): Promise<boolean>;
  /** Moves pending uploads whose time is over to `expired`, one page a call. Returns none when none are left. */
  expireUploads(): Promise<UploadId[]>;
  /** Uploads that are no longer pending and still have parts, from the one behind `after` on. */
  listUploadsToTidy(limit: number, after?: UploadId): Promise<UploadId[]>;
  /** Drops the part rows of an upload that is no longer pending. */
  forgetParts(uploadId: UploadId): Promise<void>;
  /** Drops ended uploads without parts whose time has been over for 24 hours. */
  forgetUploads(): Promise<void>;
}
