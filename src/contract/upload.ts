/** The schemas of uploads, which bring a large file in parts. */
import { z } from "zod";
import { ExpiresAfter } from "./expires-after.ts";
import { FILENAME_MAX_LENGTH, FileObject, FilePurpose, UPLOAD_PURPOSES } from "./file.ts";
import { boundedText, ID_MAX_LENGTH } from "./text.ts";
import { UnixSeconds } from "./unix-seconds.ts";

/** An upload is completed within this time, or expires. */
export const UPLOAD_LIFETIME_MS = 60 * 60 * 1000;

/** Clients cut large files into parts of exactly this size. */
export const PART_MAX_BYTES = 64 * 1024 * 1024;

/**
 * The most parts that an upload takes, and that a completion lists: enough for 8 GiB in parts of 1 MB. Each is a row and a file of
 * its own, so that an upload without a limit could use up the inodes of a disk with a few bytes.
 */
export const UPLOAD_MAX_PARTS = 10_000;

/** The longest MIME type, in characters. */
const MIME_TYPE_MAX_LENGTH = 255;
/** The length of an MD5 in hexadecimal. */
const MD5_LENGTH = 32;

export const UPLOAD_STATUSES = ["pending", "completed", "cancelled", "expired"] as const;

export const CreateUpload = z
  .strictObject({
    filename: boundedText(FILENAME_MAX_LENGTH),
    purpose: z.enum(UPLOAD_PURPOSES),
    bytes: z
      .int()
      .min(0)
      .describe(
        "The size of the whole file. At most 8589934592, and 209715200 for the input of a batch, unless the server is set up otherwise.",
      ),
    mime_type: boundedText(MIME_TYPE_MAX_LENGTH).describe("Any; only its length is checked."),
    expires_after: ExpiresAfter.nullable().optional(),
  })
  .meta({ id: "CreateUpload" });

export const CompleteUpload = z
  .strictObject({
    part_ids: z
      .array(boundedText(ID_MAX_LENGTH))
      .max(UPLOAD_MAX_PARTS)
      .describe("The parts that make the file, in their order."),
    md5: boundedText(MD5_LENGTH)
      .nullable()
      .optional()
      .describe("MD5 of the whole file, in hexadecimal. When given, it must match."),
  })
  .meta({ id: "CompleteUpload" });

export const UploadObject = z
  .object({
    id: z.string().describe("`upload_` and 32 hexadecimal digits."),
    object: z.literal("upload"),
    bytes: z.int(),
    created_at: UnixSeconds,
    filename: z.string(),
    purpose: FilePurpose,
    status: z.enum(UPLOAD_STATUSES),
    expires_at: UnixSeconds,
    file: FileObject.nullable().describe("The file, once the upload is completed."),
  })
  .meta({ id: "Upload" });
export type UploadObject = z.infer<typeof UploadObject>;

export const UploadPartObject = z
  .object({
    id: z.string().describe("`part_` and 32 hexadecimal digits."),
    object: z.literal("upload.part"),
    created_at: UnixSeconds,
    upload_id: z.string(),
  })
  .meta({ id: "UploadPart" });
export type UploadPartObject = z.infer<typeof UploadPartObject>;
