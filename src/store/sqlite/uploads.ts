/**
 * Uploads and their parts. An upload takes a part only while it is pending and has time left. The same guard ends the
 * upload, so all parts stored afterwards are garbage, which is found through `has_parts`.
 */

import { setImmediate as nextTurn } from "node:timers/promises";
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
import { isPendingUpload, isUploadToTidy } from "./conditions.ts";
import { type Db, type Now, write } from "./database.ts";
import { and, eq, gt, sql } from "./drizzle.ts";
import { uploadParts, uploads } from "./file-schema.ts";
import { insertFile, storedBy } from "./files.ts";
import { recordReceipt } from "./idempotency.ts";
import type { SqliteIntents } from "./intents.ts";
import { isUpload } from "./scope.ts";

const hasTime = (nowMs: number) => and(isPendingUpload, gt(uploads.expiresAtMs, nowMs));

/** One statement ends so many uploads: some 5 ms. */
const EXPIRY_PAGE = 500;
/** One statement looks at so many of the oldest uploads: some 5 ms. */
const FORGETTING_PAGE = 500;
/** One statement reads or deletes so many parts: some 5 ms. */
const PARTS_PAGE = 1_000;

export class SqliteUploads implements UploadStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #intents: SqliteIntents;

  constructor(db: Db, now: Now, intents: SqliteIntents) {
    this.#db = db;
    this.#now = now;
    this.#intents = intents;
  }

  async insertUpload(upload: Upload, { receipt, quotas }: FileTerms = {}): Promise<void> {
    const { project } = upload;
    write(this.#db, () => {
      if (quotas !== undefined && quotas.files !== null) {
        const { files } = storedBy(this.#db, project);
        assertRoomForUpload(files + this.#countPending(project), quotas);
      }
      this.#db.insert(uploads).values(upload).run();
      if (receipt !== undefined) recordReceipt(this.#db, receipt);
    });
  }

  #countPending(project: string): number {
    const { count } = this.#db.get<{ count: number }>(
      sql`select count(*) as count from uploads where project = ${project} and ${isPendingUpload}`,
    );
    return count;
  }

  async findUpload(upload: ScopedId<"upload">): Promise<Upload | null> {
    const row = this.#db.select().from(uploads).where(isUpload(upload)).get();
    return row === undefined ? null : uploadFromRow(row);
  }

  async insertPartIfPending(part: UploadPart, limit: ByteQuota | undefined): Promise<PartOutcome> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      if (!this.#intents.has(part.blobKey)) return "refused";
      const upload = this.#db
        .update(uploads)
        .set({ hasParts: true })
        .where(and(eq(uploads.id, part.uploadId), hasTime(nowMs)))
        .returning({ partCount: uploads.partCount })
        .get();
      if (upload === undefined) return "refused";
      if (upload.partCount >= UPLOAD_MAX_PARTS) return "full";
      this.#intents.consume(part.blobKey);
      if (limit !== undefined && limit.quotas.storedBytes !== null) {
        assertRoomForBytes(storedBy(this.#db, limit.project), part.bytes, limit.quotas);
      }
      this.#db.insert(uploadParts).values(part).run();
      return "stored";
    });
  }

  async *partPages(uploadId: UploadId): AsyncGenerator<UploadPart[]> {
    let after = 0;
    for (;;) {
      const page = this.#db
        .select()
        .from(uploadParts)
        .where(and(eq(uploadParts.uploadId, uploadId), gt(uploadParts.sequence, after)))
        .orderBy(uploadParts.sequence)
        .limit(PARTS_PAGE)
        .all();
      yield page.map(partFromRow);
      if (page.length < PARTS_PAGE) return;
      after = page.at(-1)?.sequence ?? after;
      await nextTurn();
    }
  }

  async completeUploadIfPending(
    upload: ScopedId<"upload">,
    file: StoredFile,
    { receipt, quotas }: FileTerms = {},
  ): Promise<boolean> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      if (!this.#intents.has(file.blobKey)) return false;
      const { changes } = this.#db
        .update(uploads)
        .set({ status: "completed", fileId: file.id })
        .where(and(isUpload(upload), hasTime(nowMs)))
        .run();
      if (changes === 0) return false;
      this.#intents.consume(file.blobKey);
      insertFile(this.#db, file, quotas);
      if (receipt !== undefined) recordReceipt(this.#db, receipt);
      return true;
    });
  }

  async cancelUploadIfPending(upload: ScopedId<"upload">): Promise<boolean> {
    const { changes } = this.#db
      .update(uploads)
      .set({ status: "cancelled" })
      .where(and(isUpload(upload), isPendingUpload))
      .run();
    return changes === 1;
  }

  async expireUploads(): Promise<UploadId[]> {
    const nowMs = this.#now();
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

  async listUploadsToTidy(limit: number, after?: UploadId): Promise<UploadId[]> {
    return this.#db
      .select({ id: uploads.id })
      .from(uploads)
      .where(and(isUploadToTidy, isBehind(uploads, after)))
      .orderBy(uploads.sequence)
      .limit(limit)
      .all()
      .map(({ id }) => id);
  }

  /**
   * Deletes the parts first, page by page, and clears the flag last. A deletion that is cut short is then found
   * again.
   */
  async forgetParts(uploadId: UploadId): Promise<void> {
    const isEnded = and(eq(uploads.id, uploadId), sql`not (${isPendingUpload})`);
    if (this.#db.select({ id: uploads.id }).from(uploads).where(isEnded).get() === undefined)
      return;
    while (this.#forgetPage(uploadId) === PARTS_PAGE) await nextTurn();
    this.#db.update(uploads).set({ hasParts: false }).where(isEnded).run();
  }

  /** Looks at the oldest rows alone, which need no index: all uploads have the same time. */
  async forgetUploads(): Promise<void> {
    const nowMs = this.#now();
    const oldest = sql`select sequence from uploads order by sequence limit ${FORGETTING_PAGE}`;
    const isOver = sql`not (${isPendingUpload}) and has_parts = 0
      and expires_at_ms <= ${nowMs - UPLOAD_KEPT_MS}`;
    const forgetPage = () =>
      this.#db.delete(uploads).where(sql`sequence in (${oldest}) and ${isOver}`).run().changes;
    while (forgetPage() > 0) await nextTurn();
  }

  #forgetPage(uploadId: UploadId): number {
    const page = sql`select sequence from upload_parts where upload_id = ${uploadId} limit ${PARTS_PAGE}`;
    return this.#db.delete(uploadParts).where(sql`sequence in (${page})`).run().changes;
  }
}
