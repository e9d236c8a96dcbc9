/** The place from which a list of things to remove goes on. */
import type { BatchId, FileId, UploadId } from "../../batch/batch.ts";
import { type SQL, sql } from "./drizzle.ts";
import type { files, uploads } from "./file-schema.ts";
import type { batches } from "./schema.ts";

/** Matches the rows behind the row of `after`. Matches all without one, and when its row is gone. */
export const isBehind = (
  table: typeof batches | typeof files | typeof uploads,
  after: BatchId | FileId | UploadId | undefined,
): SQL | undefined =>
  after === undefined
    ? undefined
    : sql`sequence > coalesce((select sequence from ${table} where id = ${after}), 0)`;
