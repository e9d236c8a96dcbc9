/** Projects that were made at run time, and the deletion of all data of a project. */
import { type Page, pageOf, ROWS_PAGE } from "../page.ts";
import {
  DEFAULT_RULES,
  DELETION_MS,
  type ProjectQuery,
  type ProjectStore,
  projectFromRow,
  type StoredProject,
} from "../projects.ts";
import { OF_INSTALLATION } from "../tombstones.ts";
import { apiKeys, interactiveSlots, projects, requestCounts } from "./access-schema.ts";
import { isDeleted, isDeleting, isListed, isPendingUpload, isSelected } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { PostgresDeleting } from "./deleting.ts";
import { and, asc, desc, eq, gt, lt, type SQL, sql } from "./drizzle.ts";
import { files, idempotencyKeys, tombstones, uploads } from "./file-schema.ts";
import { sendNudge } from "./nudges.ts";
import { lockKeys } from "./project-locks.ts";
import { batches, forecasts } from "./schema.ts";
import { leaveTombstones, placeOf } from "./tombstones.ts";
import { modelUsage, reservations, usageSums } from "./usage-schema.ts";

const PAGE_BATCHES = 50;
/** One statement changes so many rows. */
const PAGE_ROWS = 5_000;

type Purged =
  | typeof apiKeys
  | typeof files
  | typeof idempotencyKeys
  | typeof interactiveSlots
  | typeof modelUsage
  | typeof requestCounts
  | typeof reservations
  | typeof tombstones
  | typeof usageSums
  | typeof uploads;

export class PostgresProjects implements ProjectStore {
  readonly #db: Database;
  readonly #deleting: PostgresDeleting;

  constructor(db: Database) {
    this.#db = db;
    this.#deleting = new PostgresDeleting(db);
  }

  putProjectUnlessDeleted({
    name,
    rules,
    createdAtMs,
  }: Omit<StoredProject, "deletedAtMs">): Promise<boolean> {
    return this.#db.transaction(async (db) => {
      const { rowCount } = await db
        .insert(projects)
        .values({ name, rules, createdAtMs, changedAtMs: createdAtMs })
        .onConflictDoUpdate({
          target: projects.name,
          set: { rules, changedAtMs: createdAtMs },
          setWhere: sql`${projects.deletedAtMs} is null`,
        });
      await sendNudge(db, "keys_changed");
      return rowCount === 1;
    });
  }

  async findProject(name: string): Promise<StoredProject | null> {
    const [row] = await this.#db.read((db) =>
      db.select().from(projects).where(eq(projects.name, name)),
    );
    return row === undefined ? null : projectFromRow(row);
  }

  listProjects({ limit, after }: ProjectQuery): Promise<Page<StoredProject> | null> {
    return this.#db.read(async (db) => {
      let start: SQL | undefined;
      if (after !== null) {
        const place = await placeOf(db, "projects", { project: OF_INSTALLATION, id: after });
        if (place === null) return null;
        start = lt(projects.sequence, place);
      }
      const rows = await db
        .select()
        .from(projects)
        .where(start)
        .orderBy(desc(projects.sequence))
        .limit(limit + 1);
      return pageOf(rows, limit, projectFromRow);
    });
  }

  async findProjects(): Promise<StoredProject[]> {
    const found: StoredProject[] = [];
    for (let after: number | undefined = 0; after !== undefined; ) {
      const rows = await this.#readAfter(after);
      found.push(...rows.map(projectFromRow));
      after = rows[ROWS_PAGE - 1]?.sequence;
    }
    return found;
  }

  #readAfter(after: number) {
    return this.#db.read((db) =>
      db
        .select()
        .from(projects)
        .where(gt(projects.sequence, after))
        .orderBy(asc(projects.sequence))
        .limit(ROWS_PAGE),
    );
  }

  beginDeletingProjectIfPresent(name: string): Promise<boolean> {
    const now = this.#db.now();
    return this.#db.transaction(async (db) => {
      await lockKeys(db);
      if (!(await isPresent(db, name))) return false;
      await db
        .insert(projects)
        .values({
          name,
          rules: DEFAULT_RULES,
          createdAtMs: now,
          changedAtMs: now,
          deletedAtMs: now,
        })
        .onConflictDoUpdate({
          target: projects.name,
          set: { rules: DEFAULT_RULES, deletedAtMs: now, changedAtMs: now },
        });
      await leaveTombstones(db, "keys", eq(apiKeys.project, name), now);
      await db.delete(apiKeys).where(eq(apiKeys.project, name));
      await sendNudge(db, "keys_changed");
      return true;
    });
  }

  /**
   * Each page is a statement of its own, so that none exceeds the time for one. Each asks again whether the project is being
   * deleted: this process may have stood still, and there may be another project of the name.
   */
  async purgeProject(name: string): Promise<number> {
    const now = this.#db.now();
    await this.#deleteBatches(name);
    await this.#inPages(
      files,
      and(eq(files.project, name), isListed, isDeleting(name)),
      (db, page) => db.update(files).set({ deletedAtMs: now }).where(page),
    );
    await this.#inPages(
      uploads,
      and(eq(uploads.project, name), isPendingUpload, isDeleting(name)),
      (db, page) => db.update(uploads).set({ status: "cancelled" }).where(page),
    );
    const isWithoutParts = and(
      eq(uploads.project, name),
      sql`not (${isPendingUpload})`,
      eq(uploads.hasParts, false),
      isDeleting(name),
    );
    await this.#delete(uploads, isWithoutParts);
    for (const table of [apiKeys, idempotencyKeys, requestCounts, interactiveSlots]) {
      await this.#delete(table, and(eq(table.project, name), isDeleting(name)));
    }
    const left = await this.#db.read((db) => countLeft(db, name));
    if (left > 0) return left;
    // Nothing adds to them once the last batch is gone.
    for (const table of [modelUsage, usageSums, reservations, tombstones]) {
      await this.#delete(table, and(eq(table.project, name), isDeleting(name)));
    }
    return this.#db.transaction(async (db) => {
      const added = await countLeft(db, name);
      const isOver = sql`deleted_at_ms <= ${now} - ${DELETION_MS}::bigint`;
      if (added > 0) return added;
      const isDue = and(eq(projects.name, name), isOver);
      await leaveTombstones(db, "projects", isDue, now);
      await db.delete(projects).where(isDue);
      return 0;
    });
  }

  #delete(table: Purged, isMeant: SQL | undefined): Promise<void> {
    return this.#inPages(table, isMeant, (db, page) => db.delete(table).where(page));
  }

  async #inPages(
    table: Purged,
    isMeant: SQL | undefined,
    change: (db: Db, page: SQL) => Promise<{ readonly rowCount: number | null }>,
  ): Promise<void> {
    const page = isSelected(sql`
      select sequence from ${table} where ${isMeant} limit ${PAGE_ROWS} for update skip locked`);
    const changePage = async () => (await this.#db.change((db) => change(db, page))).rowCount;
    while ((await changePage()) === PAGE_ROWS);
  }

  async #deleteBatches(project: string): Promise<void> {
    const rows = await this.#db.read((db) =>
      db
        .select({ id: batches.id })
        .from(batches)
        .where(and(eq(batches.project, project), isListed, isDeleting(project)))
        .limit(PAGE_BATCHES),
    );
    const ids = rows.map(({ id }) => id);
    for (const id of ids) {
      await this.#deleting.deleteBatchIfPresent({ project, id }, { withInput: true });
      await this.#db.change((db) => db.delete(forecasts).where(eq(forecasts.batchId, id)));
    }
  }
}

async function isPresent(db: Db, name: string): Promise<boolean> {
  if ((await db.$count(projects, eq(projects.name, name))) > 0) return true;
  for (const table of [apiKeys, batches, files, uploads, modelUsage]) {
    const [found] = await db
      .select({ project: table.project })
      .from(table)
      .where(eq(table.project, name))
      .limit(1);
    if (found !== undefined) return true;
  }
  return false;
}

const countLeft = async (db: Db, name: string): Promise<number> =>
  (await db.$count(batches, eq(batches.project, name))) +
  // Each part has an index.
  (await db.$count(files, and(eq(files.project, name), isListed))) +
  (await db.$count(files, and(eq(files.project, name), isDeleted))) +
  (await db.$count(uploads, eq(uploads.project, name)));
