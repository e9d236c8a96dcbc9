/** The part of the store for files. A deleted file keeps its bytes as long as an open batch reads them. */
import type { FileId, ScopedId, StoredFile, UntrustedId } from "../batch/batch.ts";
import type { SourceFiles } from "../batch/derivation.ts";
import type { FilePurpose } from "../contract/file.ts";
import type { Receipt } from "./idempotency.ts";
import type { Page } from "./page.ts";
import type { FileQuotas, StoredSums } from "./quotas.ts";

export interface FileQuery {
  readonly project: string;
  readonly purpose: FilePurpose | null;
  readonly order: "asc" | "desc";
  readonly limit: number;
  readonly after: UntrustedId<"file"> | null;
}

/** What the commit of a file, or of an upload, has to keep to and to record. */
export interface FileTerms {
  readonly receipt?: Receipt | undefined;
  readonly quotas?: FileQuotas | undefined;
}

/** The part of the {@link Store} port for files. */
export interface FileStore {
  /**
   * Publishes a file whose blob is durable, with the receipt of its idempotency key, if it came with one. Returns
   * false when the intent of the blob was revoked: the file does not exist, and never will. Rejects with `QuotaExceeded`
   * when the project has no room for it.
   */
  insertFileIfDeclared(file: StoredFile, terms?: FileTerms): Promise<boolean>;
  findFile(file: ScopedId<"file">): Promise<StoredFile | null>;
  /** Lists files that have not expired. Returns null when `after` names no file that the project has, or had a day ago. */
  listFiles(query: FileQuery): Promise<Page<StoredFile> | null>;
  /** Deletes the file for clients at once; its bytes stay while an open batch reads them. */
  deleteFileIfPresent(file: ScopedId<"file">): Promise<boolean>;
  /** Deletes expired files as {@link deleteFileIfPresent} does, one page a call. Returns none when none are left. */
  deleteExpiredFiles(): Promise<FileId[]>;
  /** Sums up what the project has stored at this moment, which may change at once. */
  sumStored(project: string): Promise<StoredSums>;
  /**
   * Lists deleted files that no open batch reads any more, from the one behind `after` on. Where a commit may be taken back, a
   * final batch counts as open until its chunks are forgotten.
   */
  listUnusedFiles(limit: number, after?: FileId): Promise<StoredFile[]>;
  /**
   * Forgets deleted files whose blobs were deleted, in one commit: each commit is a sync, for which the event loop waits on
   * SQLite.
   */
  forgetFiles(ids: readonly FileId[]): Promise<void>;
}

/** Finds some files of a project; null for one that is not named, or is gone. */
export async function findFilesOf(
  store: Pick<FileStore, "findFile">,
  project: string,
  ids: SourceFiles<UntrustedId<"file">>,
): Promise<SourceFiles<StoredFile | null>> {
  const find = async (id: UntrustedId<"file"> | null) =>
    id === null ? null : store.findFile({ project, id });
  return {
    input: await find(ids.input),
    output: await find(ids.output),
    error: await find(ids.error),
  };
}
