/**
 * Uploads and their parts. Only an upload that is pending and has time left takes a part, and the same condition guards
 * its end. A part that is stored later is garbage, which the sweep finds through `has_parts`.
 */

import type { ScopedId, StoredFile, UploadId } from "../../batch/batch.ts";
import { UPLOAD_MAX_PARTS } from "../../contract/upload.ts";
import type { FileTerms } from "../files.ts";
import { assertRoomForBytes, assertRoomForUpload, type ByteQuota } from "../quotas.ts";
import { partFromRow, uploadFromRow } from "../rows.ts";
import { isBehind } from "../sql/behind.ts";
import {
  type PartOutcome,
  UPLOAD_KEPT_MS,
  type Upload,
  type UploadPart,
  type UploadStore,
} from "../uploads.ts";
import { isPendingUpload, isSelected, isUploadToTidy } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, gt, type SQL, sql } from "./drizzle.ts";
import { uploadParts, uploads } from "./file-schema.ts";
import { findInserted, insertFile, storedBy } from "./files.ts";
import { recordReceipt } from "./idempotency.ts";
import { consumeIntent, haveIntents } from "./intents.ts";
import { lockLists } from "./project-locks.ts";
import { isUpload } from "./scope.ts";

const hasTime = (now: SQL) => and(isPendingUpload, gt(uploads.expiresAtMs, now));

const EXPIRY_PAGE = 500;
/** One statement looks at so many of the oldest uploads. */
const FORGETTING_PAGE = 5_000;
/** The number of parts that are read at a time. */
const PARTS_PAGE = 1_000;

export class PostgresUploads implements UploadStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  insertUpload(upload: Upload, { receipt, quotas }: FileTerms = {}): Promise<void> {
    const { project } = upload;
    const isBounded = quotas !== undefined && quotas.files !== null;
    const insert = async (db: Db): Promise<void> => {
      if (isBounded) {
        await lockLists(db, project);
        const { files } = await storedBy(db, project);
        const isOfProject = and(eq(uploads.project, project), isPendingUpload);
        assertRoomForUpload(files + (await db.$count(uploads, isOfProject)), quotas);
      }
      await db.insert(uploads).values(upload);
      if (receipt !== undefined) await recordReceipt(db, receipt);
    };
    return isBounded
      ? this.#db.lockingTransaction({ kind: "lists", project }, insert)
      : this.#db.transaction(insert);
  }

  async findUpload(upload: ScopedId<"upload">): Promise<Upload | null> {
    const [row] = await this.#db.read((db) => db.select().from(uploads).where(isUpload(upload)));
    return row === undefined ? null : uploadFromRow(row);
  }

  insertPartIfPending(part: UploadPart, limit: ByteQuota | undefined): Promise<PartOutcome> {
    const now = this.#db.now();
    const isBounded = limit !== undefined && limit.quotas.storedBytes !== null;
    const insert = async (db: Db): Promise<PartOutcome> => {
      if (!(await haveIntents(db, [part.blobKey]))) return "refused";
      // From here on no other part of the upload comes between.
      const [upload] = await db
        .update(uploads)
        .set({ hasParts: true })
        .where(and(eq(uploads.id, part.uploadId), hasTime(now)))
        .returning({ partCount: uploads.partCount });
      if (upload === undefined) return "refused";
      if (upload.partCount >= UPLOAD_MAX_PARTS) return "full";
      await consumeIntent(db, part.blobKey);
      if (isBounded) {
        await lockLists(db, limit.project);
        assertRoomForBytes(await storedBy(db, limit.project), part.bytes, limit.quotas);
      }
      await db.insert(uploadParts).values(part);
      return "stored";
    };
    return isBounded
      ? this.#db.lockingTransaction({ kind: "lists", project: limit.project }, insert)
      : this.#db.transaction(insert);
  }

  async *partPages(uploadId: UploadId): AsyncGenerator<UploadPart[]> {
    let after = 0;
    for (;;) {
      const page = await this.#db.read((db) =>
        db
          .select()
          .from(uploadParts)
          .where(and(eq(uploadParts.uploadId, uploadId), gt(uploadParts.sequence, after)))
          .orderBy(uploadParts.sequence)
          .limit(PARTS_PAGE),
      );
      yield page.map(partFromRow);
      if (page.length < PARTS_PAGE) return;
      after = page.at(-1)?.sequence ?? after;
    }
  }

  completeUploadIfPending(
    upload: ScopedId<"upload">,
    file: StoredFile,
    { receipt, quotas }: FileTerms = {},
  ): Promise<boolean> {
    const now = this.#db.now();
    const { project } = upload;
    const complete = async (db: Db) => {
      if (!(await haveIntents(db, [file.blobKey]))) return false;
      const { rowCount } = await db
        .update(uploads)
        .set({ status: "completed", fileId: file.id })
        .where(and(isUpload(upload), hasTime(now)));
      if (rowCount === 0) return false;
      await consumeIntent(db, file.blobKey);
      await insertFile(db, file, quotas);
      if (receipt !== undefined) await recordReceipt(db, receipt);
      return true;
    };
    return this.#db.certainTransaction({ kind: "lists", project }, complete, (db) =>
      findInserted(db, file),
    );
  }

  async cancelUploadIfPending(upload: ScopedId<"upload">): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db
        .update(uploads)
        .set({ status: "cancelled" })
        .where(and(isUpload(upload), isPendingUpload)),
    );
    return rowCount === 1;
  }

  async expireUploads(): Promise<UploadId[]> {
    const now = this.#db.now();
    const expired = await this.#db.change((db) =>
      db
        .update(uploads)
        .set({ status: "expired" })
        .where(
          isSelected(sql`
            select sequence from uploads
            where ${isPendingUpload} and expires_at_ms <= ${now}
            order by expires_at_ms limit ${EXPIRY_PAGE} for update skip locked`),
        )
        .returning({ id: uploads.id }),
    );
    return expired.map(({ id }) => id);
  }

  async listUploadsToTidy(limit: number, after?: UploadId): Promise<UploadId[]> {
    const rows = await this.#db.read((db) =>
      db
        .select({ id: uploads.id })
        .from(uploads)
        .where(and(isUploadToTidy, isBehind(uploads, after)))
        .orderBy(uploads.sequence)
        .limit(limit),
    );
    return rows.map(({ id }) => id);
  }

  forgetParts(uploadId: UploadId): Promise<void> {
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .update(uploads)
        .set({ hasParts: false })
        .where(and(eq(uploads.id, uploadId), sql`not (${isPendingUpload})`));
      if (rowCount === 1) await db.delete(uploadParts).where(eq(uploadParts.uploadId, uploadId));
    });
  }

  /** Looks at the oldest rows alone, which need no index: all uploads have the same time. */
  async forgetUploads(): Promise<void> {
    const now = this.#db.now();
    const forgetPage = async () => {
      const { rowCount } = await this.#db.change((db) =>
        db.delete(uploads).where(
          isSelected(sql`
            select sequence from uploads
            where sequence <= (
                select max(sequence) from (
                  select sequence from uploads order by sequence limit ${FORGETTING_PAGE}) as oldest)
              and not (${isPendingUpload}) and not has_parts
              and expires_at_ms <= ${now} - ${UPLOAD_KEPT_MS}::bigint
            for update skip locked`),
        ),
      );
      return rowCount ?? 0;
    };
    while ((await forgetPage()) > 0);
  }
}
