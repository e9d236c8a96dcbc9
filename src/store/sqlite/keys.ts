/** Keys that were made at run time, and the requests of projects. */
import type { UntrustedId } from "../../batch/batch.ts";
import { timeForMore } from "../../resources/time-slice.ts";
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
import { type Db, type Now, write, writeUnsynced } from "./database.ts";
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
import { leaveTombstones, placeOf } from "./tombstones.ts";

const isKey = (id: UntrustedId<"key">): SQL => sql`${apiKeys.id} = ${id}`;
const isInForce = (nowMs: number) =>
  or(isNull(apiKeys.expiresAtMs), gt(apiKeys.expiresAtMs, nowMs));

const isBeingDeleted = (db: Db, project: string): boolean =>
  db
    .select({ name: projects.name })
    .from(projects)
    .where(and(eq(projects.name, project), isNotNull(projects.deletedAtMs)))
    .get() !== undefined;

export class SqliteKeys implements KeyStore {
  readonly #db: Db;
  readonly #now: Now;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
  }

  async insertKeyUnlessDeleted(key: NewKey): Promise<boolean> {
    return write(this.#db, () => {
      if (isBeingDeleted(this.#db, key.project)) return false;
      this.#db.insert(keyRequirement).values({ sequence: 1 }).onConflictDoNothing().run();
      this.#db.insert(apiKeys).values(key).run();
      return true;
    });
  }

  async findKey(id: UntrustedId<"key">): Promise<StoredKey | null> {
    const row = this.#db.select().from(apiKeys).where(isKey(id)).get();
    return row === undefined ? null : keyFromRow(row);
  }

  async listKeys({ limit, after }: KeyQuery): Promise<Page<StoredKey> | null> {
    let start: SQL | undefined;
    if (after !== null) {
      const place = placeOf(this.#db, "keys", { project: OF_INSTALLATION, id: after });
      if (place === null) return null;
      start = lt(apiKeys.sequence, place);
    }
    const rows = this.#db
      .select()
      .from(apiKeys)
      .where(start)
      .orderBy(desc(apiKeys.sequence))
      .limit(limit + 1)
      .all();
    return pageOf(rows, limit, keyFromRow);
  }

  async deleteKeyIfPresent(id: UntrustedId<"key">): Promise<StoredKey | null> {
    const nowMs = this.#now();
    return write(this.#db, () => {
      leaveTombstones(this.#db, "keys", isKey(id), nowMs);
      const row = this.#db.delete(apiKeys).where(isKey(id)).returning().get();
      return row === undefined ? null : keyFromRow(row);
    });
  }

  /**
   * A key is never changed, and numbers are never used again, so count and last number tell every change. They are read first, so
   * that a change between two pages makes another mark.
   */
  async findKeysInForce(mark: string | null): Promise<KeysInForce | null> {
    const nowMs = this.#now();
    const [found] = this.#db
      .select({
        mark: sql<string>`(select count(*) from key_requirement) || '/' || count(*) || '/' || coalesce(max(sequence), 0)`,
      })
      .from(apiKeys)
      .where(isInForce(nowMs))
      .all();
    if (found === undefined || found.mark === mark) return null;
    const keys: KeyInForce[] = [];
    for (let after: number | undefined = 0; after !== undefined; ) {
      await timeForMore();
      const page = this.#readInForce(after, nowMs);
      keys.push(...page);
      after = page[ROWS_PAGE - 1]?.sequence;
    }
    return { isKeyRequired: !found.mark.startsWith("0/"), keys, mark: found.mark };
  }

  #readInForce(after: number, nowMs: number) {
    const { sequence, id, name, project, scopes, digest } = apiKeys;
    return this.#db
      .select({ sequence, id, name, project, scopes, digest })
      .from(apiKeys)
      .where(and(isInForce(nowMs), gt(sequence, after)))
      .orderBy(asc(sequence))
      .limit(ROWS_PAGE)
      .all();
  }

  /** Needs no sync: a power cut takes a minute at most. */
  async takeRequest(project: string, limit: number): Promise<RequestAllowance> {
    const nowMs = this.#now();
    const minute = Math.floor(nowMs / MINUTE_MS);
    const isCounting = sql`${requestCounts.minute} between ${minute} and ${minute + 1}`;
    const [row] = writeUnsynced(this.#db, () =>
      this.#db
        .insert(requestCounts)
        .values({ project, minute, requestCount: 1 })
        .onConflictDoUpdate({
          target: requestCounts.project,
          set: {
            minute: sql`iif(${isCounting}, ${requestCounts.minute}, ${minute})`,
            requestCount: sql`iif(${isCounting}, ${requestCounts.requestCount} + 1, 1)`,
          },
          setWhere: sql`not (${isCounting}) or ${requestCounts.requestCount} < ${limit}`,
        })
        .returning({ requestCount: requestCounts.requestCount })
        .all(),
    );
    return allowanceOf(row?.requestCount ?? null, limit, nowMs);
  }

  async recordKeyUses(ids: readonly KeyId[]): Promise<void> {
    const nowMs = this.#now();
    for (const page of inPages(ids, USES_PAGE)) {
      await timeForMore();
      this.#db.update(apiKeys).set({ lastUsedAtMs: nowMs }).where(inArray(apiKeys.id, page)).run();
    }
  }

  async agreeOnSigningKey(purpose: string, fresh: string): Promise<string> {
    return write(this.#db, () => {
      this.#db.insert(signingKeys).values({ purpose, key: fresh }).onConflictDoNothing().run();
      const row = this.#db
        .select({ key: signingKeys.key })
        .from(signingKeys)
        .where(sql`${signingKeys.purpose} = ${purpose}`)
        .get();
      return row?.key ?? fresh;
    });
  }
}
