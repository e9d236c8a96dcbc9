/** Keeps the intents to write blobs, and finds the blobs that no row can name any more: see `../intents.ts`. */

import type { IntentStore } from "../intents.ts";
import { leaseOfSegment } from "../segment-key.ts";
import { isSelected } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { eq, inArray, sql } from "./drizzle.ts";
import { blobIntents } from "./file-schema.ts";
import { arrayOf, later } from "./leases.ts";

/** Takes part in the commit that writes the row. Returns false when the intent was revoked: no row may name the blob. */
export async function consumeIntent(db: Db, blobKey: string): Promise<boolean> {
  const { rowCount } = await db.delete(blobIntents).where(eq(blobIntents.blobKey, blobKey));
  return rowCount === 1;
}

/**
 * Returns whether all of the blobs may still get a row, and keeps it so until the end of the transaction. Whatever waits for
 * intents locks them in the order of their keys. A renewal does not wait.
 */
export async function haveIntents(db: Db, blobKeys: readonly string[]): Promise<boolean> {
  if (blobKeys.length === 0) return true;
  const found = await db
    .select({ blobKey: blobIntents.blobKey })
    .from(blobIntents)
    .where(inArray(blobIntents.blobKey, [...blobKeys]))
    .orderBy(blobIntents.blobKey)
    .for("update");
  return found.length === blobKeys.length;
}

/** Takes part in the commit that writes the rows, after {@link haveIntents}. */
export async function endIntents(db: Db, blobKeys: readonly string[]): Promise<void> {
  if (blobKeys.length === 0) return;
  await db.delete(blobIntents).where(inArray(blobIntents.blobKey, [...blobKeys]));
}

export class PostgresIntents implements IntentStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async declareBlobs(blobKeys: readonly string[], ttlMs: number): Promise<void> {
    const expiresAt = later(this.#db.now(), ttlMs);
    await this.#db.change((db) =>
      db.execute(sql`
        insert into blob_intents (blob_key, expires_at_ms)
        select blob_key, ${expiresAt} from unnest(${arrayOf(blobKeys, "text")}) as asked(blob_key)`),
    );
  }

  /**
   * Passes over intents that a commit under way has locked: it waits for the lists of its project, and with it would the commits
   * of all projects whose intents are locked here before. Each intent outlasts many renewals.
   */
  async renewIntents(blobKeys: readonly string[], ttlMs: number): Promise<void> {
    const expiresAtMs = later(this.#db.now(), ttlMs);
    await this.#db.change((db) =>
      db
        .update(blobIntents)
        .set({ expiresAtMs })
        .where(
          isSelected(sql`
            select sequence from blob_intents where blob_key = any(${arrayOf(blobKeys, "text")})
            order by blob_key for update skip locked`),
        ),
    );
  }

  revokeIntentIfDeclared(blobKey: string): Promise<boolean> {
    return this.#db.change((db) => consumeIntent(db, blobKey));
  }

  async revokeExpiredIntents(limit: number): Promise<string[]> {
    const now = this.#db.now();
    const ended = await this.#db.change((db) =>
      db
        .delete(blobIntents)
        .where(
          isSelected(sql`
            select sequence from blob_intents where expires_at_ms <= ${now}
            order by expires_at_ms limit ${limit} for update skip locked`),
        )
        .returning({ blobKey: blobIntents.blobKey }),
    );
    return ended.map(({ blobKey }) => blobKey);
  }

  /**
   * One statement asks everything, because it sees one moment of the database. The conditions of a lease are the same as
   * in `isHeldChunk`: a write that they refuse now, they will refuse for ever. A standby, which a pooler may lead to, knows
   * no garbage: it may be behind.
   */
  async findGarbage(blobKeys: readonly string[]): Promise<string[]> {
    const leases = blobKeys.map(leaseOfSegment);
    const { rows } = await this.#db.read((db) =>
      db.execute<{ key: string }>(sql`
        select key from unnest(
          ${arrayOf(blobKeys, "text")},
          ${arrayOf(
            leases.map((lease) => lease?.batchId ?? null),
            "text",
          )},
          ${arrayOf(
            leases.map((lease) => storable(lease?.chunkNumber)),
            "bigint",
          )},
          ${arrayOf(
            leases.map((lease) => storable(lease?.epoch)),
            "bigint",
          )}
        ) with ordinality as asked(key, batch_id, number, epoch, position)
        where current_setting('in_hot_standby', true) is distinct from 'on'
          and not exists (select 1 from files where blob_key = key)
          and not exists (select 1 from segments where blob_key = key)
          and not exists (select 1 from upload_parts where blob_key = key)
          and not exists (select 1 from blob_intents where blob_key = key)
          and not exists (
            select 1 from chunks
            where chunks.batch_id = asked.batch_id and chunks.number = asked.number
              and lease_epoch = asked.epoch and lease_owner is not null)
        order by position`),
    );
    return rows.map(({ key }) => key);
  }
}

/** A file that is not ours may have any digits in its name. */
const storable = (number: number | undefined): number | null =>
  number !== undefined && Number.isSafeInteger(number) ? number : null;
