/**
 * Conditions on ids that a client wrote. A query uses such an id only together with the project of the client's key, so
 * each condition here has both. Elsewhere `eq` refuses to compare such an id, because the column has another type.
 */

import type { ScopedId } from "../../batch/batch.ts";
import { isListed } from "./conditions.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { files, uploads } from "./file-schema.ts";
import { batches } from "./schema.ts";

type Column = typeof files.id | typeof batches.id | typeof uploads.id;

/** Converts the id as the column would, because a client may have put anything into it. */
const isId = (column: Column, id: string): SQL => sql`${column} = ${sql.param(id, column)}`;

export const isFile = ({ project, id }: ScopedId<"file">) =>
  and(eq(files.project, project), isId(files.id, id));

export const isUpload = ({ project, id }: ScopedId<"upload">) =>
  and(eq(uploads.project, project), isId(uploads.id, id));

export const isScopedBatch = ({ project, id }: ScopedId<"batch">) =>
  and(eq(batches.project, project), isId(batches.id, id), isListed);

/** Matches the input file of a batch, whose client named the file. */
export const isInputOf = ({ project, inputFileId }: { project: string; inputFileId: string }) =>
  and(eq(files.project, project), isId(files.id, inputFileId));
