/**
 * Uploads and their parts. A part is only taken by an upload that is pending and has time left, and the same
 * guard ends the upload, so whatever is stored of it afterwards is garbage that is found through `has_parts`.
 */

import type { ScopedId, StoredFile, UploadId } from "../../batch/batch.ts";
import type { Receipt } from "../idempotency.ts";
import type { Upload, UploadPart } from "../uploads.ts";
import { isPendingUpload, isUploadToTidy } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, eq, gt, sql } from "./drizzle.ts";
import type { SqliteIdempotency } from "./idempotency.ts";
import type { SqliteIntents } from "./intents.ts";
import { partFromRow, uploadFromRow } from "./rows.ts";
import { files, uploadParts, uploads } from "./schema.ts";
import { isUpload } from "./scope.ts";

const hasTime = (nowMs: number) => and(isPendingUpload, gt(uploads.expiresAtMs, nowMs));

/** Uploads that one statement ends: some 5 ms. */
const EXPIRY_PAGE = 500;

export class SqliteUploads {
  readonly #db: Db;
  readonly #idempotency: SqliteIdempotency;
  readonly #intents: SqliteIntents;

  constructor(db: Db, idempotency: SqliteIdempotency, intents: SqliteIntents) {
    this.#db = db;
    this.#idempotency = idempotency;
    this.#intents = intents;
  }

  insert(upload: Upload, receipt?: Receipt): void {
    write(this.#db, () => {
      this.#db.insert(uploads).values(upload).run();
      if (receipt !== undefined) this.#idempotency.record(receipt);
    });
  }

  find(upload: ScopedId<"upload">): Upload | null {
    const row = this.#db.select().from(uploads).where(isUpload(upload)).get();
    return row === undefined ? null : uploadFromRow(row);
  }

  insertPartIfPending(part: UploadPart, nowMs: number): boolean {
    return write(this.#db, () => {
      if (!this.#intents.has(part.blobKey)) return false;
      const { changes } = this.#db
        .update(uploads)
        .set({ hasParts: true })
        .where(and(eq(uploads.id, part.uploadId), hasTime(nowMs)))
        .run();
      if (changes === 0) return false;
      this.#intents.consume(part.blobKey);
      this.#db.insert(uploadParts).values(part).run();
      return true;
    });
  }

  listParts(uploadId: UploadId): UploadPart[] {
    return this.#db
      .select()
      .from(uploadParts)
      .where(eq(uploadParts.uploadId, uploadId))
      .orderBy(uploadParts.sequence)
      .all()
      .map(partFromRow);
  }

  completeIfPending(upload: ScopedId<"upload">, file: StoredFile, nowMs: number): boolean {
    return write(this.#db, () => {
      if (!this.#intents.has(file.blobKey)) return false;
      const { changes } = this.#db
        .update(uploads)
        .set({ status: "completed", fileId: file.id })
        .where(and(isUpload(upload), hasTime(nowMs)))
        .run();
      if (changes === 0) return false;
      this.#intents.consume(file.blobKey);
      this.#db.insert(files).values(file).run();
      return true;
    });
  }

  cancelIfPending(upload: ScopedId<"upload">): boolean {
    const { changes } = this.#db
      .update(uploads)
      .set({ status: "cancelled" })
      .where(and(isUpload(upload), isPendingUpload))
      .run();
    return changes === 1;
  }

  expire(nowMs: number): UploadId[] {
    return this.#db
      .update(uploads)
      .set({ status: "expired" })
      .where(
        sql`sequence in (
          select sequence from uploads indexed by uploads_pending
          where ${isPendingUpload} and expires_at_ms <= ${nowMs}
          order by expires_at_ms limit ${EXPIRY_PAGE})`,
      )
      .returning({ id: uploads.id })
      .all()
      .map(({ id }) => id);
  }

  listToTidy(limit: number): UploadId[] {
    return this.#db
      .select({ id: uploads.id })
      .from(uploads)
      .where(isUploadToTidy)
      .orderBy(uploads.sequence)
      .limit(limit)
      .all()
      .map(({ id }) => id);
  }

  forgetParts(uploadId: UploadId): void {
    write(this.#db, () => {
      const { changes } = this.#db
        .update(uploads)
        .set({ hasParts: false })
        .where(and(eq(uploads.id, uploadId), sql`not (${isPendingUpload})`))
        .run();
      if (changes === 0) return;
      this.#db.delete(uploadParts).where(eq(uploadParts.uploadId, uploadId)).run();
    });
  }
}
