/** Files: what clients uploaded and what batches ended with. */

import type { FileId, ScopedId, StoredFile, UntrustedId } from "../../batch/batch.ts";
import type { FileQuery, FileStore, FileTerms } from "../files.ts";
import { type Page, pageOf } from "../page.ts";
import { assertRoomForFile, boundsFiles, type FileQuotas, type StoredSums } from "../quotas.ts";
import { fileFromRow } from "../rows.ts";
import { isBehind } from "../sql/behind.ts";
import {
  isDeleted,
  isFileThatMayExpire,
  isListed,
  isOpenBatch,
  isOpenDelivery,
  isOpenMerged,
  isPendingUpload,
  isSelected,
  isToTidy,
  statusIn,
} from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, asc, desc, eq, gt, inArray, isNull, lt, or, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { recordReceipt } from "./idempotency.ts";
import { consumeIntent } from "./intents.ts";
import { isHeld } from "./leases.ts";
import { lockLists } from "./project-locks.ts";
import { isFile } from "./scope.ts";
import { leaveTombstones, placeOf } from "./tombstones.ts";

const EXPIRY_PAGE = 500;

export class PostgresFiles implements FileStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  insertFileIfDeclared(file: StoredFile, { receipt, quotas }: FileTerms = {}): Promise<boolean> {
    const { project } = file;
    const insert = async (db: Db) => {
      if (!(await consumeIntent(db, file.blobKey))) return false;
      if (receipt !== undefined) await recordReceipt(db, receipt);
      await insertFile(db, file, quotas);
      return true;
    };
    return this.#db.certainTransaction({ kind: "lists", project }, insert, (db) =>
      findInserted(db, file),
    );
  }

  async findFile(file: ScopedId<"file">): Promise<StoredFile | null> {
    const [row] = await this.#db.read((db) =>
      db
        .select()
        .from(files)
        .where(and(isFile(file), isListed)),
    );
    return row === undefined ? null : fileFromRow(row);
  }

  listFiles(query: FileQuery): Promise<Page<StoredFile> | null> {
    const now = this.#db.now();
    return this.#db.read(async (db) => {
      const start = query.after === null ? undefined : await positionAfter(db, query, query.after);
      if (start === null) return null;
      const rows = await db
        .select()
        .from(files)
        .where(
          and(
            eq(files.project, query.project),
            query.purpose === null ? undefined : eq(files.purpose, query.purpose),
            isListed,
            or(isNull(files.expiresAtMs), gt(files.expiresAtMs, now)),
            start,
          ),
        )
        .orderBy(query.order === "asc" ? asc(files.sequence) : desc(files.sequence))
        .limit(query.limit + 1);
      return pageOf(rows, query.limit, fileFromRow);
    });
  }

  async deleteFileIfPresent(file: ScopedId<"file">): Promise<boolean> {
    const now = this.#db.now();
    const { rowCount } = await this.#db.change((db) =>
      db
        .update(files)
        .set({ deletedAtMs: now })
        .where(and(isFile(file), isListed)),
    );
    return rowCount === 1;
  }

  async deleteExpiredFiles(): Promise<FileId[]> {
    const now = this.#db.now();
    const deleted = await this.#db.change((db) =>
      db
        .update(files)
        .set({ deletedAtMs: now })
        .where(
          isSelected(sql`
            select sequence from files
            where ${isFileThatMayExpire} and expires_at_ms <= ${now}
            order by expires_at_ms limit ${EXPIRY_PAGE} for update skip locked`),
        )
        .returning({ id: files.id }),
    );
    return deleted.map(({ id }) => id);
  }

  /**
   * A batch reads its input from its start to its end, and during its validation. A batch that waits for validation does
   * not count: its claimer will find the file deleted.
   */
  async listUnusedFiles(limit: number, after?: FileId): Promise<StoredFile[]> {
    const isRead = isReadBy(sql`${isOpenBatch} and (not (${statusIn("validating")}) or ${isHeld})`);
    const isUnused = sql`not ${isRead} and not ${isReadIfEndIsLost}`;
    const rows = await this.#db.read((db) =>
      db
        .select()
        .from(files)
        .where(and(isDeleted, isUnused, isBehind(files, after)))
        .orderBy(files.sequence)
        .limit(limit),
    );
    return rows.map(fileFromRow);
  }

  sumStored(project: string): Promise<StoredSums> {
    return this.#db.read((db) => storedBy(db, project));
  }

  forgetFiles(ids: readonly FileId[]): Promise<void> {
    const now = this.#db.now();
    const isMeant = and(inArray(files.id, ids), isDeleted);
    return this.#db.transaction(async (db) => {
      await leaveTombstones(db, "files", isMeant, now);
      await db.delete(files).where(isMeant);
    });
  }
}

/** Inserts the row of a file, as the last step of a transaction. */
export async function insertFile(db: Db, file: StoredFile, quotas?: FileQuotas): Promise<void> {
  await lockLists(db, file.project);
  if (boundsFiles(quotas)) {
    // No other file of the project comes between, because its lists are locked.
    assertRoomForFile(await storedBy(db, file.project), file.bytes, quotas);
  }
  await db.insert(files).values(file);
}

/** Returns true for a file whose commit had no answer and was made, and null for one whose commit was not. */
export async function findInserted(db: Db, file: StoredFile): Promise<true | null> {
  await lockLists(db, file.project);
  return (await db.$count(files, isFile(file))) === 1 ? true : null;
}

/**
 * Whether a row names the file in this column. It is no `exists`: where 100,000 open batches have one input, PostgreSQL expects
 * to meet a match soon in the whole table, and reads all of it for each file without one. This order leads through the index.
 */
const isNamedIn = (table: string, column: string, condition: SQL): SQL => {
  const [from, name] = [sql.identifier(table), sql.identifier(column)];
  return sql`coalesce((
    select true from ${from} where ${name} between files.id and files.id and ${condition}
    order by ${name} limit 1), false)`;
};

/** The condition on a file that a delivery reads it, or a batch that is such a reader of its input. */
const isReadBy = (isReader: SQL): SQL => sql`(
  ${isNamedIn("batches", "input_file_id", sql`batches.project = files.project and ${isReader}`)}
  or ${isNamedIn("batches", "merged_output_file_id", isOpenMerged)}
  or ${isNamedIn("batches", "merged_error_file_id", isOpenMerged)}
  or ${isNamedIn("batch_deliveries", "output_file_id", isOpenDelivery)}
  or ${isNamedIn("batch_deliveries", "error_file_id", isOpenDelivery)})`;

/**
 * The condition on a file that a final batch would read again if a failover took its end back. Such a batch still has its
 * journal (`tidying.ts`). The ids are read once, and a null among them would leave open whether others are.
 */
const isReadIfEndIsLost = sql`(files.id in (
  select id from (
    select unnest(array[input_file_id, merged_output_file_id, merged_error_file_id]) as id
    from batches where ${isToTidy} and ${isListed}) as ended
  where id is not null))`;

/**
 * Sums up what a project has stored. A caller that relies on it has locked its lists. Deleted files that are still read are
 * among the bytes, also those of a batch that waits for its validation.
 */
export async function storedBy(db: Db, project: string): Promise<StoredSums> {
  const { rows } = await db.execute<{ files: string; bytes: string }>(sql`
    select count(*) as files, coalesce(sum(bytes), 0) + (
      select coalesce(sum(part_bytes), 0) from uploads
      where project = ${project} and ${isPendingUpload}) + (
      select coalesce(sum(bytes), 0) from files
      where project = ${project} and ${isDeleted} and ${isReadBy(isOpenBatch)}) as bytes
    from files where project = ${project} and ${isListed}`);
  const [sums] = rows;
  return { files: Number(sums?.files), bytes: Number(sums?.bytes) };
}

/** Returns the condition for files after the cursor, which may be a deleted file. */
async function positionAfter(
  db: Db,
  { project, order }: FileQuery,
  after: UntrustedId<"file">,
): Promise<SQL | null> {
  const place = await placeOf(db, "files", { project, id: after });
  if (place === null) return null;
  return order === "asc" ? gt(files.sequence, place) : lt(files.sequence, place);
}
