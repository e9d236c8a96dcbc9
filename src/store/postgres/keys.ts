/** Keys that were made at run time, and the requests of projects. */
import type { UntrustedId } from "../../batch/batch.ts";
import {
  type KeyId,
  type KeyInForce,
  type KeyQuery,
  type KeyStore,
  type KeysInForce,
  type NewKey,
  type StoredKey,
  USES_PAGE,
} from "../keys.ts";
import { inPages, type Page, pageOf, ROWS_PAGE } from "../page.ts";
import { allowanceOf, MINUTE_MS, type RequestAllowance } from "../quotas.ts";
import { keyFromRow } from "../rows.ts";
import { OF_INSTALLATION } from "../tombstones.ts";
import { apiKeys, keyRequirement, projects, requestCounts, signingKeys } from "./access-schema.ts";
import type { Database, Db } from "./database.ts";
import {
  and,
  asc,
  desc,
  eq,
  gt,
  inArray,
  isNotNull,
  isNull,
  lt,
  or,
  type SQL,
  sql,
} from "./drizzle.ts";
import { sendNudge } from "./nudges.ts";
import { lockKeys } from "./project-locks.ts";
import { leaveTombstones, placeOf } from "./tombstones.ts";

/** Converts the id as the column would, because a client may have put anything into it. */
const isKey = (id: UntrustedId<"key">): SQL => sql`${apiKeys.id} = ${sql.param(id, apiKeys.id)}`;
const isInForce = (now: SQL) => or(isNull(apiKeys.expiresAtMs), gt(apiKeys.expiresAtMs, now));

const readInForce = (db: Db, after: number, now: SQL) =>
  db
    .select({
      sequence: apiKeys.sequence,
      id: apiKeys.id,
      name: apiKeys.name,
      project: apiKeys.project,
      scopes: apiKeys.scopes,
      digest: apiKeys.digest,
    })
    .from(apiKeys)
    .where(and(isInForce(now), gt(apiKeys.sequence, after)))
    .orderBy(asc(apiKeys.sequence))
    .limit(ROWS_PAGE);

export class PostgresKeys implements KeyStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  insertKeyUnlessDeleted(key: NewKey): Promise<boolean> {
    return this.#db.transaction(async (db) => {
      await lockKeys(db);
      const isDeleted = and(eq(projects.name, key.project), isNotNull(projects.deletedAtMs));
      if ((await db.$count(projects, isDeleted)) > 0) return false;
      await db
        .insert(keyRequirement)
        .overridingSystemValue()
        .values({ sequence: 1 })
        .onConflictDoNothing();
      await sendNudge(db, "keys_changed");
      await db.insert(apiKeys).values(key);
      return true;
    });
  }

  async findKey(id: UntrustedId<"key">): Promise<StoredKey | null> {
    const [row] = await this.#db.read((db) => db.select().from(apiKeys).where(isKey(id)));
    return row === undefined ? null : keyFromRow(row);
  }

  listKeys({ limit, after }: KeyQuery): Promise<Page<StoredKey> | null> {
    return this.#db.read(async (db) => {
      let start: SQL | undefined;
      if (after !== null) {
        const place = await placeOf(db, "keys", { project: OF_INSTALLATION, id: after });
        if (place === null) return null;
        start = lt(apiKeys.sequence, place);
      }
      const rows = await db
        .select()
        .from(apiKeys)
        .where(start)
        .orderBy(desc(apiKeys.sequence))
        .limit(limit + 1);
      return pageOf(rows, limit, keyFromRow);
    });
  }

  deleteKeyIfPresent(id: UntrustedId<"key">): Promise<StoredKey | null> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      await leaveTombstones(db, "keys", isKey(id), now);
      const [row] = await db.delete(apiKeys).where(isKey(id)).returning();
      if (row === undefined) return null;
      await sendNudge(db, "keys_changed");
      return keyFromRow(row);
    });
  }

  /**
   * A key is never changed, and numbers are never used again, so count and last number tell every change. They are read first, so
   * that a change between two pages makes another mark.
   */
  findKeysInForce(mark: string | null): Promise<KeysInForce | null> {
    const now = this.#db.now();
    return this.#db.read(async (db) => {
      const [found] = await db
        .select({
          mark: sql<string>`(select count(*) from key_requirement) || '/' || count(*) || '/' || coalesce(max(sequence), 0)`,
        })
        .from(apiKeys)
        .where(isInForce(now));
      if (found === undefined || found.mark === mark) return null;
      const keys: KeyInForce[] = [];
      for (let after: number | undefined = 0; after !== undefined; ) {
        const page = await readInForce(db, after, now);
        keys.push(...page);
        after = page[ROWS_PAGE - 1]?.sequence;
      }
      return { isKeyRequired: !found.mark.startsWith("0/"), keys, mark: found.mark };
    });
  }

  /**
   * Many requests wait for the row at once, and their transactions may have begun before another minute did. Such a request
   * counts in the minute that has begun: one that took the row back to its own minute would let the next one count anew.
   */
  async takeRequest(project: string, limit: number): Promise<RequestAllowance> {
    const now = this.#db.now();
    const minute = sql`${now} / ${MINUTE_MS}::bigint`;
    const isCounting = sql`counts.minute between excluded.minute and excluded.minute + 1`;
    // A refusal must cost little. So it is one statement, and the row is locked for no round trip.
    const { rows } = await this.#db.change((db) =>
      db.execute<{ now_ms: string; taken: string | null }>(sql`
        with taken as (
          insert into request_counts as counts (project, minute, request_count)
            values (${sql.param(project, requestCounts.project)}, ${minute}, 1)
            on conflict (project) do update set
              minute = case when ${isCounting} then counts.minute else excluded.minute end,
              request_count = case when ${isCounting} then counts.request_count + 1 else 1 end
            where not (${isCounting}) or counts.request_count < ${limit}
            returning request_count)
        select ${now} as now_ms, (select request_count from taken) as taken`),
    );
    const [row] = rows;
    const taken = row?.taken ?? null;
    return allowanceOf(taken === null ? null : Number(taken), limit, Number(row?.now_ms));
  }

  async recordKeyUses(ids: readonly KeyId[]): Promise<void> {
    const now = this.#db.now();
    for (const page of inPages(ids, USES_PAGE)) {
      await this.#db.change((db) =>
        db.update(apiKeys).set({ lastUsedAtMs: now }).where(inArray(apiKeys.id, page)),
      );
    }
  }

  agreeOnSigningKey(purpose: string, fresh: string): Promise<string> {
    return this.#db.transaction(async (db) => {
      await db.insert(signingKeys).values({ purpose, key: fresh }).onConflictDoNothing();
      const [row] = await db
        .select({ key: signingKeys.key })
        .from(signingKeys)
        .where(sql`${signingKeys.purpose} = ${purpose}`);
      return row?.key ?? fresh;
    });
  }
}
