/**
 * The tables around files: uploads, the intents of blobs, the places of removed rows, and the keys of requests that the client
 * may repeat.
 * `schema.ts` has the rules of all tables.
 */
import type { FileId, PartId, UploadId } from "../../batch/batch.ts";
import type { CopiedFrom } from "../../batch/run-summary.ts";
import type { FilePurpose } from "../../contract/file.ts";
import type { ListWithTombstones } from "../tombstones.ts";
import type { UploadStatus } from "../uploads.ts";
import { big, holder, sequence, text } from "./columns.ts";
import {
  completedUploadHasFile,
  isDeleted,
  isFileThatMayExpire,
  isKeyInProgress,
  isKnownList,
  isKnownUploadStatus,
  isListed,
  isPendingUpload,
  isUploadToTidy,
  keyIsInProgressOrAnswered,
  leaseHasOwnerAndExpiry,
} from "./conditions.ts";
import { boolean, check, index, json, pgTable, sql, unique } from "./drizzle.ts";

export const files = pgTable(
  "files",
  {
    sequence: sequence(),
    id: text("id").$type<FileId>().notNull(),
    project: text("project").notNull(),
    purpose: text("purpose").$type<FilePurpose>().notNull(),
    filename: text("filename").notNull(),
    bytes: big("bytes").notNull(),
    sha256: text("sha256").notNull(),
    blobKey: text("blob_key").notNull(),
    createdAtMs: big("created_at_ms").notNull(),
    expiresAtMs: big("expires_at_ms"),
    /** Clients no longer see a file with this date, but a batch may still read its bytes. */
    deletedAtMs: big("deleted_at_ms"),
    traceparent: text("traceparent"),
    copiedFrom: json("copied_from").$type<CopiedFrom>(),
  },
  (file) => [
    unique("files_id").on(file.id),
    unique("files_blob_key").on(file.blobKey),
    index("files_listed").on(file.project, file.sequence).where(isListed),
    index("files_listed_by_purpose").on(file.project, file.purpose, file.sequence).where(isListed),
    index("files_deleted").on(file.sequence).where(isDeleted),
    index("files_deleted_by_project").on(file.project).where(isDeleted),
    index("files_stored").on(file.project, file.bytes).where(isListed),
    index("files_that_may_expire").on(file.expiresAtMs).where(isFileThatMayExpire),
    check("file_bytes_not_negative", sql`bytes >= 0`),
  ],
);

export const uploads = pgTable(
  "uploads",
  {
    sequence: sequence(),
    id: text("id").$type<UploadId>().notNull(),
    project: text("project").notNull(),
    filename: text("filename").notNull(),
    purpose: text("purpose").$type<FilePurpose>().notNull(),
    bytes: big("bytes").notNull(),
    mimeType: text("mime_type").notNull(),
    status: text("status").$type<UploadStatus>().notNull(),
    createdAtMs: big("created_at_ms").notNull(),
    expiresAtMs: big("expires_at_ms").notNull(),
    fileExpiresAfterSeconds: big("file_expires_after_seconds"),
    fileId: text("file_id").$type<FileId>(),
    /** The flag is set from the first part until the upload is tidied: there may be part rows, and so their blobs. */
    hasParts: boolean("has_parts").notNull().default(false),
    /** What has come of the upload. Triggers of `upload_parts` add it up in every commit, whatever makes it. */
    partCount: big("part_count").notNull().default(0),
    partBytes: big("part_bytes").notNull().default(0),
  },
  (upload) => [
    unique("uploads_id").on(upload.id),
    index("uploads_pending").on(upload.expiresAtMs).where(isPendingUpload),
    index("uploads_pending_by_project").on(upload.project).where(isPendingUpload),
    index("uploads_to_tidy").on(upload.sequence).where(isUploadToTidy),
    check("upload_status_is_known", isKnownUploadStatus),
    check("completed_upload_has_file", completedUploadHasFile),
    check("upload_bytes_not_negative", sql`bytes >= 0`),
  ],
);

export const uploadParts = pgTable(
  "upload_parts",
  {
    sequence: sequence(),
    id: text("id").$type<PartId>().notNull(),
    uploadId: text("upload_id")
      .$type<UploadId>()
      .notNull()
      .references(() => uploads.id),
    bytes: big("bytes").notNull(),
    blobKey: text("blob_key").notNull(),
    createdAtMs: big("created_at_ms").notNull(),
  },
  (part) => [
    unique("upload_parts_id").on(part.id),
    unique("upload_parts_blob_key").on(part.blobKey),
    index("upload_parts_by_upload").on(part.uploadId, part.sequence),
    check("part_bytes_not_negative", sql`bytes >= 0`),
  ],
);

/** Blobs that are being written and whose row is to follow: see `../intents.ts`. */
export const blobIntents = pgTable(
  "blob_intents",
  {
    sequence: sequence(),
    blobKey: text("blob_key").notNull(),
    expiresAtMs: big("expires_at_ms").notNull(),
  },
  (intent) => [
    unique("blob_intents_blob_key").on(intent.blobKey),
    index("blob_intents_by_expiry").on(intent.expiresAtMs),
  ],
);

/** The places of removed rows in their lists: see `../tombstones.ts`. */
export const tombstones = pgTable(
  "tombstones",
  {
    sequence: sequence(),
    list: text("list").$type<ListWithTombstones>().notNull(),
    project: text("project").notNull(),
    id: text("id").notNull(),
    /** The number that the row had. */
    place: big("place").notNull(),
    createdAtMs: big("created_at_ms").notNull(),
  },
  (tombstone) => [
    unique("tombstones_id").on(tombstone.project, tombstone.list, tombstone.id),
    index("tombstones_by_age").on(tombstone.createdAtMs),
    check("tombstone_list_is_known", isKnownList),
  ],
);

/** Keys of requests that the client may repeat. A key without an answer is held by the request that works on it. */
export const idempotencyKeys = pgTable(
  "idempotency_keys",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    key: text("key").notNull(),
    createdAtMs: big("created_at_ms").notNull(),
    fingerprint: text("fingerprint"),
    answer: text("answer"),
    ...holder(),
  },
  (row) => [
    unique("idempotency_keys_project_key").on(row.project, row.key),
    index("idempotency_keys_by_age").on(row.createdAtMs),
    index("idempotency_keys_in_progress").on(row.sequence).where(isKeyInProgress),
    check("key_is_in_progress_or_answered", keyIsInProgressOrAnswered),
    check("key_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
  ],
);
/** The one row that says which installation of batchd the database belongs to. */
export const installation = pgTable(
  "installation",
  {
    isOnly: boolean("is_only").primaryKey().default(true),
    id: text("id").notNull(),
    /** The place of the blobs; null until the first start has found an empty one. */
    blobPlace: text("blob_place"),
    /** The installation that this one is a copy of, and when the copy was complete: see `../copying.ts`. */
    originId: text("origin_id"),
    copiedAtMs: big("copied_at_ms"),
  },
  () => [check("installation_has_one_row", sql`is_only`)],
);
