/** The schemas of files, and the purposes for which a client may upload one. */
import { z } from "zod";
import { ExpiresAfter } from "./expires-after.ts";
import { InputPlace } from "./input-place.ts";
import { pageOf } from "./page.ts";
import { UnixSeconds } from "./unix-seconds.ts";

/** The longest name of a file, in characters. */
export const FILENAME_MAX_LENGTH = 512;

/** The purposes for which a client may upload a file, in the order in which OpenAI's error message lists them. */
export const UPLOAD_PURPOSES = [
  "fine-tune",
  "assistants",
  "batch",
  "user_data",
  "vision",
  "evals",
] as const;

export const FilePurpose = z.enum([
  ...UPLOAD_PURPOSES,
  "assistants_output",
  "batch_output",
  "fine-tune-results",
]);
export type FilePurpose = z.infer<typeof FilePurpose>;

/** Purposes whose content a client may download. */
export const DOWNLOADABLE_PURPOSES: readonly FilePurpose[] = [
  "batch",
  "batch_output",
  "fine-tune",
  "fine-tune-results",
];

/** The request for a file that is copied from a location. */
export const CopyFile = z
  .strictObject({
    purpose: z.literal("batch"),
    expires_after: ExpiresAfter.nullable().optional(),
    x_batchd: z.strictObject({ input: InputPlace }),
  })
  .meta({ id: "CopyFile" });

export const FileObject = z
  .object({
    object: z.literal("file"),
    id: z.string().describe("`file-` and 22 letters or digits."),
    purpose: FilePurpose,
    filename: z.string(),
    bytes: z.int(),
    created_at: UnixSeconds,
    expires_at: UnixSeconds.nullable(),
    status: z.literal("processed"),
    status_details: z.null(),
  })
  .meta({ id: "File" });
export type FileObject = z.infer<typeof FileObject>;

export const FilePage = pageOf(FileObject).meta({ id: "FilePage" });

export const DeletedFile = z
  .object({ object: z.literal("file"), id: z.string(), deleted: z.literal(true) })
  .meta({ id: "DeletedFile" });

/** The page sizes of `GET /v1/files`. */
export const FILE_PAGE = { min: 1, max: 10_000, default: 10_000 } as const;
