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
import { holder, sequence } from "./columns.ts";
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
import { check, index, integer, sql, sqliteTable, text, uniqueIndex } from "./drizzle.ts";

export const files = sqliteTable(
  "files",
  {
    sequence: sequence(),
    id: text("id").$type<FileId>().notNull(),
    project: text("project").notNull(),
    purpose: text("purpose").$type<FilePurpose>().notNull(),
    filename: text("filename").notNull(),
    bytes: integer("bytes").notNull(),
    sha256: text("sha256").notNull(),
    blobKey: text("blob_key").notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
    expiresAtMs: integer("expires_at_ms"),
    /** A file with this date is gone for clients, while a batch may still read its bytes. */
    deletedAtMs: integer("deleted_at_ms"),
    traceparent: text("traceparent"),
    copiedFrom: text("copied_from", { mode: "json" }).$type<CopiedFrom>(),
  },
  (file) => [
    uniqueIndex("files_id").on(file.id),
    uniqueIndex("files_blob_key").on(file.blobKey),
    index("files_listed").on(file.project, file.sequence).where(isListed),
    index("files_listed_by_purpose").on(file.project, file.purpose, file.sequence).where(isListed),
    index("files_deleted").on(file.sequence).where(isDeleted),
    index("files_deleted_by_project").on(file.project).where(isDeleted),
    index("files_that_may_expire").on(file.expiresAtMs).where(isFileThatMayExpire),
    check("file_bytes_not_negative", sql`bytes >= 0`),
  ],
);

/**
 * The listed files of each project, summed up, with the bytes of the parts of its pending uploads. Each upload to a project
 * with a quota asks for them, and a project may have 300,000 files, and a million parts. Triggers of `files` and `uploads` keep
 * the sums in every commit, whatever makes it, so they cannot be wrong. A migration that builds one of these tables anew must
 * make them again.
 */
export const storedSums = sqliteTable(
  "stored_sums",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    fileCount: integer("file_count").notNull(),
    bytes: integer("bytes").notNull(),
  },
  (sums) => [uniqueIndex("stored_sums_project").on(sums.project)],
);

export const uploads = sqliteTable(
  "uploads",
  {
    sequence: sequence(),
    id: text("id").$type<UploadId>().notNull(),
    project: text("project").notNull(),
    filename: text("filename").notNull(),
    purpose: text("purpose").$type<FilePurpose>().notNull(),
    bytes: integer("bytes").notNull(),
    mimeType: text("mime_type").notNull(),
    status: text("status").$type<UploadStatus>().notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
    expiresAtMs: integer("expires_at_ms").notNull(),
    fileExpiresAfterSeconds: integer("file_expires_after_seconds"),
    fileId: text("file_id").$type<FileId>(),
    /** The flag is set from the first part until tidying: there may be part rows, and so blobs for them. */
    hasParts: integer("has_parts", { mode: "boolean" }).notNull().default(false),
    /** What has come of the upload. Triggers of `upload_parts` add it up in every commit, whatever makes it. */
    partCount: integer("part_count").notNull().default(0),
    partBytes: integer("part_bytes").notNull().default(0),
  },
  (upload) => [
    uniqueIndex("uploads_id").on(upload.id),
    index("uploads_pending").on(upload.expiresAtMs).where(isPendingUpload),
    index("uploads_pending_by_project").on(upload.project).where(isPendingUpload),
    index("uploads_to_tidy").on(upload.sequence).where(isUploadToTidy),
    check("upload_status_is_known", isKnownUploadStatus),
    check("completed_upload_has_file", completedUploadHasFile),
    check("upload_bytes_not_negative", sql`bytes >= 0`),
  ],
);

export const uploadParts = sqliteTable(
  "upload_parts",
  {
    sequence: sequence(),
    id: text("id").$type<PartId>().notNull(),
    uploadId: text("upload_id")
      .$type<UploadId>()
      .notNull()
      .references(() => uploads.id),
    bytes: integer("bytes").notNull(),
    blobKey: text("blob_key").notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
  },
  (part) => [
    uniqueIndex("upload_parts_id").on(part.id),
    uniqueIndex("upload_parts_blob_key").on(part.blobKey),
    index("upload_parts_by_upload").on(part.uploadId, part.sequence),
    check("part_bytes_not_negative", sql`bytes >= 0`),
  ],
);

/** Blobs that are being written and whose row is to follow: see `../intents.ts`. */
export const blobIntents = sqliteTable(
  "blob_intents",
  {
    sequence: sequence(),
    blobKey: text("blob_key").notNull(),
    expiresAtMs: integer("expires_at_ms").notNull(),
  },
  (intent) => [
    uniqueIndex("blob_intents_blob_key").on(intent.blobKey),
    index("blob_intents_by_expiry").on(intent.expiresAtMs),
  ],
);

/** The places of removed rows in their lists: see `../tombstones.ts`. */
export const tombstones = sqliteTable(
  "tombstones",
  {
    sequence: sequence(),
    list: text("list").$type<ListWithTombstones>().notNull(),
    project: text("project").notNull(),
    id: text("id").notNull(),
    /** The number that the row had. */
    place: integer("place").notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
  },
  (tombstone) => [
    uniqueIndex("tombstones_id").on(tombstone.project, tombstone.list, tombstone.id),
    index("tombstones_by_age").on(tombstone.createdAtMs),
    check("tombstone_list_is_known", isKnownList),
  ],
);

/** Keys of requests that the client may repeat. The request at work holds a key that has no answer yet. */
export const idempotencyKeys = sqliteTable(
  "idempotency_keys",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    key: text("key").notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
    fingerprint: text("fingerprint"),
    answer: text("answer"),
    ...holder(),
  },
  (row) => [
    uniqueIndex("idempotency_keys_project_key").on(row.project, row.key),
    index("idempotency_keys_by_age").on(row.createdAtMs),
    index("idempotency_keys_in_progress").on(row.sequence).where(isKeyInProgress),
    check("key_is_in_progress_or_answered", keyIsInProgressOrAnswered),
    check("key_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
  ],
);

/** The one row that says which installation of batchd the database belongs to, and whether it is a copy: see `../copying.ts`. */
export const installation = sqliteTable(
  "installation",
  {
    isOnly: integer("is_only", { mode: "boolean" }).primaryKey().default(true),
    id: text("id").notNull(),
    originId: text("origin_id"),
    copiedAtMs: integer("copied_at_ms"),
  },
  () => [check("installation_has_one_row", sql`is_only = 1`)],
);
