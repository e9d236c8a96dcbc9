/**
 * Conditions on what a client named. An id from outside stands in a query only together with the project that may see
 * the thing, so each condition here has both. Elsewhere `eq` refuses to compare such an id: its type is not that of the
 * column.
 */

import type { ScopedId } from "../../batch/batch.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { batches, files, uploads } from "./schema.ts";

export const isFile = ({ project, id }: ScopedId<"file">) =>
  and(eq(files.project, project), sql`${files.id} = ${id}`);

export const isUpload = ({ project, id }: ScopedId<"upload">) =>
  and(eq(uploads.project, project), sql`${uploads.id} = ${id}`);

/** For statements that run with a `ScopedId<"batch">`. */
export const isScopedBatch = and(
  eq(batches.project, placeholder("project")),
  eq(batches.id, placeholder("id")),
);

/** The input file of a batch, for statements that run with the row of the batch: its client named the file. */
export const isInputOfBatch = and(
  eq(files.project, placeholder("project")),
  eq(files.id, placeholder("inputFileId")),
);
