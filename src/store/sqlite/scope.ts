/**
 * Conditions on ids that a client named. They exist so that a query names such an id only together with the project
 * that may see the thing. A bare `eq` on such an id must not compile: the type of the id differs from the type of the
 * column.
 */

import type { ScopedId } from "../../batch/batch.ts";
import { isListed } from "./conditions.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { files, uploads } from "./file-schema.ts";
import { batches } from "./schema.ts";

export const isFile = ({ project, id }: ScopedId<"file">) =>
  and(eq(files.project, project), sql`${files.id} = ${id}`);

export const isUpload = ({ project, id }: ScopedId<"upload">) =>
  and(eq(uploads.project, project), sql`${uploads.id} = ${id}`);

/** The condition serves statements that run with a `ScopedId<"batch">`. */
export const isScopedBatch = and(
  eq(batches.project, placeholder("project")),
  eq(batches.id, placeholder("id")),
  isListed,
);

/**
 * The condition finds the input file of a batch, whose client named it. It serves statements that run with the row of
 * the batch.
 */
export const isInputOfBatch = and(
  eq(files.project, placeholder("project")),
  eq(files.id, placeholder("inputFileId")),
);
