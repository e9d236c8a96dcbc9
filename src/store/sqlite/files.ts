/** Files: the uploads of clients, and the results of batches. */

import { setImmediate as nextTurn } from "node:timers/promises";
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
  statusIn,
} from "./conditions.ts";
import { type Db, type Now, write } from "./database.ts";
import { and, asc, desc, eq, gt, inArray, isNull, lt, lte, or, type SQL, sql } from "./drizzle.ts";
import { files, storedSums } from "./file-schema.ts";
import { recordReceipt } from "./idempotency.ts";
import type { SqliteIntents } from "./intents.ts";
import { isFile } from "./scope.ts";
import { leaveTombstones, placeOf } from "./tombstones.ts";

/** One statement deletes so many files: some 5 ms. */
const EXPIRY_PAGE = 500;
/** One statement looks at so many deleted files: some 5 ms. A project may have 100,000 open batches whose inputs are deleted. */
const UNUSED_STEP = 2_000;
/** So many deleted files are looked up one by one in a millisecond. */
const FEW_DELETED = 1_000;

/** Inserts the row of a file, as a part of a transaction. */
export function insertFile(db: Db, file: StoredFile, quotas?: FileQuotas): void {
  if (boundsFiles(quotas)) {
    assertRoomForFile(storedBy(db, file.project), file.bytes, quotas);
  }
  db.insert(files).values(file).run();
}

/**
 * The ids of the files that open batches and deliveries of a project read: of these, a deleted one keeps its bytes. A batch
 * that waits for its validation counts, too, as its input is gone in a moment.
 */
const readBy = (project: string): SQL => sql`
  select input_file_id from batches indexed by batches_open_by_project
  where ${isOpenBatch} and batches.project = ${project}
  union all select merged_output_file_id from batches indexed by batches_open_by_merged_output
  where ${isOpenMerged} and batches.project = ${project}
  union all select merged_error_file_id from batches indexed by batches_open_by_merged_error
  where ${isOpenMerged} and batches.project = ${project}
  union all select output_file_id from batch_deliveries indexed by batch_deliveries_by_output
  where ${isOpenDelivery}
  union all select error_file_id from batch_deliveries indexed by batch_deliveries_by_error
  where ${isOpenDelivery}`;

/** The condition on a file that a batch, which is such a reader of its input, or a delivery reads it. */
const isReadBy = (isReader: SQL): SQL => sql`(exists (
    select 1 from batches
    where input_file_id = files.id and batches.project = files.project and ${isReader})
  or exists (select 1 from batches where merged_output_file_id = files.id and ${isOpenMerged})
  or exists (select 1 from batches where merged_error_file_id = files.id and ${isOpenMerged})
  or exists (select 1 from batch_deliveries where output_file_id = files.id and ${isOpenDelivery})
  or exists (select 1 from batch_deliveries where error_file_id = files.id and ${isOpenDelivery}))`;

/**
 * Sums up the deleted files of a project that are still read. A few of them are looked up among what reads files, as a project
 * may have 100,000 batches open. Very many are looked up from there, as most of them wait for the sweep alone.
 */
const keptBytes = (project: string): SQL => sql`
  case when (
    select count(*) from (
      select 1 from files indexed by files_deleted_by_project
      where project = ${project} and ${isDeleted} limit ${FEW_DELETED})) < ${FEW_DELETED}
  then (
    select coalesce(sum(bytes), 0) from files indexed by files_deleted_by_project
    where project = ${project} and ${isDeleted} and ${isReadBy(isOpenBatch)})
  else (
    select coalesce(sum(bytes), 0) from files indexed by files_id
    where project = ${project} and ${isDeleted} and id in (${readBy(project)})) end`;

/** Returns what a project has stored. Deleted files that are still read are among the bytes. */
export const storedBy = (db: Db, project: string): StoredSums =>
  db.get(sql`
    select coalesce(sum(file_count), 0) as files,
      coalesce(sum(bytes), 0) + ${keptBytes(project)} as bytes
    from ${storedSums} where project = ${project}`);

export class SqliteFiles implements FileStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #intents: SqliteIntents;

  constructor(db: Db, now: Now, intents: SqliteIntents) {
    this.#db = db;
    this.#now = now;
    this.#intents = intents;
  }

  async insertFileIfDeclared(
    file: StoredFile,
    { receipt, quotas }: FileTerms = {},
  ): Promise<boolean> {
    return write(this.#db, () => {
      if (!this.#intents.consume(file.blobKey)) return false;
      insertFile(this.#db, file, quotas);
      if (receipt !== undefined) recordReceipt(this.#db, receipt);
      return true;
    });
  }

  async findFile(file: ScopedId<"file">): Promise<StoredFile | null> {
    const row = this.#db
      .select()
      .from(files)
      .where(and(isFile(file), isListed))
      .get();
    return row === undefined ? null : fileFromRow(row);
  }

  async listFiles(query: FileQuery): Promise<Page<StoredFile> | null> {
    const nowMs = this.#now();
    const start = query.after === null ? undefined : this.#positionAfter(query, query.after);
    if (start === null) return null;
    const rows = this.#db
      .select()
      .from(files)
      .where(
        and(
          eq(files.project, query.project),
          query.purpose === null ? undefined : eq(files.purpose, query.purpose),
          isListed,
          or(isNull(files.expiresAtMs), gt(files.expiresAtMs, nowMs)),
          start,
        ),
      )
      .orderBy(query.order === "asc" ? asc(files.sequence) : desc(files.sequence))
      .limit(query.limit + 1)
      .all();
    return pageOf(rows, query.limit, fileFromRow);
  }

  /** Returns the condition for files after the cursor, which may be a deleted file. */
  #positionAfter({ project, order }: FileQuery, after: UntrustedId<"file">): SQL | null {
    const place = placeOf(this.#db, "files", { project, id: after });
    if (place === null) return null;
    return order === "asc" ? gt(files.sequence, place) : lt(files.sequence, place);
  }

  async deleteFileIfPresent(file: ScopedId<"file">): Promise<boolean> {
    const nowMs = this.#now();
    const { changes } = this.#db
      .update(files)
      .set({ deletedAtMs: nowMs })
      .where(and(isFile(file), isListed))
      .run();
    return changes === 1;
  }

  async deleteExpiredFiles(): Promise<FileId[]> {
    const nowMs = this.#now();
    return this.#db
      .update(files)
      .set({ deletedAtMs: nowMs })
      .where(
        sql`sequence in (
          select sequence from files indexed by files_that_may_expire
          where ${isFileThatMayExpire} and expires_at_ms <= ${nowMs}
          order by expires_at_ms limit ${EXPIRY_PAGE})`,
      )
      .returning({ id: files.id })
      .all()
      .map(({ id }) => id);
  }

  /** Other work goes on between the steps. It makes no deleted file one that is read. */
  async listUnusedFiles(limit: number, after?: FileId): Promise<StoredFile[]> {
    const unused: StoredFile[] = [];
    for (let behind = isBehind(files, after); ; await nextTurn()) {
      const { end } = this.#db.get<{ end: number | null }>(sql`
        select max(sequence) as end from (
          select sequence from files where ${and(isDeleted, behind)}
          order by sequence limit ${UNUSED_STEP})`);
      if (end === null) return unused;
      unused.push(
        ...this.#listUnusedIn(and(behind, lte(files.sequence, end)), limit - unused.length),
      );
      if (unused.length === limit) return unused;
      behind = gt(files.sequence, end);
    }
  }

  /**
   * Lists deleted files that no batch reads. A batch reads its input while it is validated and from its start to its
   * end. A batch that only waits for validation does not count: its claimer will find the file deleted.
   */
  #listUnusedIn(step: SQL | undefined, limit: number): StoredFile[] {
    const isRead = isReadBy(
      sql`${isOpenBatch} and (not (${statusIn("validating")}) or lease_owner is not null)`,
    );
    return this.#db
      .select()
      .from(files)
      .where(and(isDeleted, sql`not ${isRead}`, step))
      .orderBy(files.sequence)
      .limit(limit)
      .all()
      .map(fileFromRow);
  }

  async sumStored(project: string): Promise<StoredSums> {
    return storedBy(this.#db, project);
  }

  async forgetFiles(ids: readonly FileId[]): Promise<void> {
    const nowMs = this.#now();
    const isMeant = and(inArray(files.id, ids), isDeleted);
    write(this.#db, () => {
      leaveTombstones(this.#db, "files", isMeant, nowMs);
      this.#db.delete(files).where(isMeant).run();
    });
  }
}
