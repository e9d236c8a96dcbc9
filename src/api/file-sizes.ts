/** The limits on the bytes of files, as they are at the time of a call. */

/** OpenAI takes files of other purposes than `batch` up to this size in one piece. */
const OTHER_FILE_BYTES = 512 * 1024 * 1024;

interface Limits {
  readonly max_file_bytes: number;
  readonly max_upload_bytes: number;
}

export const fileSizes = (limits: () => Limits) => ({
  maxFileBytes: () => limits().max_file_bytes,
  maxUploadBytes: () => limits().max_upload_bytes,
  maxBytesAtOnce: () =>
    Math.max(limits().max_file_bytes, Math.min(OTHER_FILE_BYTES, limits().max_upload_bytes)),
});
