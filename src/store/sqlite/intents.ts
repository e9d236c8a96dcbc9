/** Keeps the intents to write blobs, and finds the blobs that no row can name any more: see `../intents.ts`. */

import type { IntentStore } from "../intents.ts";
import { leaseOfSegment } from "../segment-key.ts";
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
import { eq, placeholder, sql } from "./drizzle.ts";
import { blobIntents } from "./file-schema.ts";

const prepareStatements = (db: Db) => ({
  insert: db
    .insert(blobIntents)
    .values({ blobKey: placeholder("blobKey"), expiresAtMs: placeholder("expiresAtMs") })
    .prepare(),
  renew: db
    .update(blobIntents)
    .set({ expiresAtMs: sql`${placeholder("expiresAtMs")}` })
    .where(eq(blobIntents.blobKey, placeholder("blobKey")))
    .prepare(),
  find: db
    .select({ blobKey: blobIntents.blobKey })
    .from(blobIntents)
    .where(eq(blobIntents.blobKey, placeholder("blobKey")))
    .prepare(),
  end: db
    .delete(blobIntents)
    .where(eq(blobIntents.blobKey, placeholder("blobKey")))
    .prepare(),
  endExpired: db
    .delete(blobIntents)
    .where(
      sql`sequence in (
        select sequence from blob_intents
        where expires_at_ms <= ${placeholder("nowMs")} order by expires_at_ms limit ${placeholder("limit")})`,
    )
    .returning({ blobKey: blobIntents.blobKey })
    .prepare(),
});

export class SqliteIntents implements IntentStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
    this.#statements = prepareStatements(db);
  }

  /**
   * The write needs no sync: a power cut ends the writer too, and then the blob is garbage without an intent as well.
   */
  async declareBlobs(blobKeys: readonly string[], ttlMs: number): Promise<void> {
    const expiresAtMs = this.#now() + ttlMs;
    writeUnsynced(this.#db, () => {
      for (const blobKey of blobKeys) this.#statements.insert.run({ blobKey, expiresAtMs });
    });
  }

  async renewIntents(blobKeys: readonly string[], ttlMs: number): Promise<void> {
    const expiresAtMs = this.#now() + ttlMs;
    writeUnsynced(this.#db, () => {
      for (const blobKey of blobKeys) this.#statements.renew.run({ blobKey, expiresAtMs });
    });
  }

  /** Returns false when the intent was revoked: no row may name the blob. */
  has(blobKey: string): boolean {
    return this.#statements.find.get({ blobKey }) !== undefined;
  }

  /** Consumes the intent as part of the commit that writes the row. Returns false when it was revoked. */
  consume(blobKey: string): boolean {
    return this.#statements.end.run({ blobKey }).changes === 1;
  }

  /**
   * Ends the intent with a sync, because the blob is deleted next. A commit that was reported as failed may still be
   * in the log on the disk. The synced commit takes its place there.
   */
  async revokeIntentIfDeclared(blobKey: string): Promise<boolean> {
    return write(this.#db, () => this.consume(blobKey));
  }

  async revokeExpiredIntents(limit: number): Promise<string[]> {
    const nowMs = this.#now();
    return write(this.#db, () =>
      this.#statements.endExpired.all({ nowMs, limit }).map(({ blobKey }) => blobKey),
    );
  }

  /** The conditions of a lease are those in `isHeldChunk`: a write that it refuses now, it will refuse for ever. */
  async findGarbage(blobKeys: readonly string[]): Promise<string[]> {
    const asked = blobKeys.map((key) => ({ key, ...leaseOfSegment(key) }));
    return this.#db
      .all<{ key: string }>(sql`
        select value ->> 'key' as key from json_each(${JSON.stringify(asked)}) as asked
        where not exists (select 1 from files where blob_key = value ->> 'key')
          and not exists (select 1 from segments where blob_key = value ->> 'key')
          and not exists (select 1 from upload_parts where blob_key = value ->> 'key')
          and not exists (select 1 from blob_intents where blob_key = value ->> 'key')
          and not exists (
            select 1 from chunks
            where batch_id = value ->> 'batchId' and number = value ->> 'chunkNumber'
              and lease_epoch = value ->> 'epoch' and lease_owner is not null)`)
      .map(({ key }) => key);
  }
}
