/** The place from which a list of things to remove goes on. */
import type { BatchId, FileId, UploadId } from "../../batch/batch.ts";
import { type SQL, type SQLWrapper, sql } from "./drizzle.ts";

/** Matches the rows behind the row of `after`. Matches all without one, and when its row is gone. */
export const isBehind = (
  table: SQLWrapper,
  after: BatchId | FileId | UploadId | undefined,
): SQL | undefined =>
  after === undefined
    ? undefined
    : sql`sequence > coalesce((select sequence from ${table} where id = ${after}), 0)`;
