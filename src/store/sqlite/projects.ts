/** Projects that were made at run time, and the deletion of all data of a project. */
import { setImmediate as nextTurn } from "node:timers/promises";
import { timeForMore } from "../../resources/time-slice.ts";
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
import { isDeleted, isDeleting, isListed, isPendingUpload } from "./conditions.ts";
import { type Db, type Now, write } from "./database.ts";
import type { SqliteDeleting } from "./deleting.ts";
import { and, asc, desc, eq, gt, lt, type SQL, sql } from "./drizzle.ts";
import { files, idempotencyKeys, tombstones, uploads } from "./file-schema.ts";
import { batches } from "./schema.ts";
import { PAGE_CHUNKS } from "./stopping.ts";
import { leaveTombstones, placeOf } from "./tombstones.ts";
import { modelUsage, reservations, usageSums } from "./usage-schema.ts";

/** One call deletes so many batches. */
const PAGE_BATCHES = 50;
/** A commit, which blocks the event loop until the disk has it, deletes so many of them: some 5 ms. */
const COMMIT_BATCHES = 10;
/** Together they close no more chunks than one commit may. With a page for each, it took up to 260 ms. */
const MARKING = { withInput: true, maxChunks: PAGE_CHUNKS / COMMIT_BATCHES };
/** One statement changes so many rows: some 5 ms. */
const PAGE_ROWS = 500;
/** One statement looks at so many rows. */
const PAGE_READ = 5_000;

type Purged =
  | typeof files
  | typeof idempotencyKeys
  | typeof modelUsage
  | typeof reservations
  | typeof tombstones
  | typeof usageSums
  | typeof uploads;

export class SqliteProjects implements ProjectStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #deleting: SqliteDeleting;
  /** No upload up to this row is one of the deleted project. */
  readonly #uploadsReadTo = new Map<string, number>();

  constructor(db: Db, now: Now, deleting: SqliteDeleting) {
    this.#db = db;
    this.#now = now;
    this.#deleting = deleting;
  }

  async putProjectUnlessDeleted({
    name,
    rules,
    createdAtMs,
  }: Omit<StoredProject, "deletedAtMs">): Promise<boolean> {
    const { changes } = this.#db
      .insert(projects)
      .values({ name, rules, createdAtMs, changedAtMs: createdAtMs })
      .onConflictDoUpdate({
        target: projects.name,
        set: { rules, changedAtMs: createdAtMs },
        setWhere: sql`${projects.deletedAtMs} is null`,
      })
      .run();
    return changes === 1;
  }

  async findProject(name: string): Promise<StoredProject | null> {
    return this.#find(name);
  }

  async listProjects({ limit, after }: ProjectQuery): Promise<Page<StoredProject> | null> {
    let start: SQL | undefined;
    if (after !== null) {
      const place = placeOf(this.#db, "projects", { project: OF_INSTALLATION, id: after });
      if (place === null) return null;
      start = lt(projects.sequence, place);
    }
    const rows = this.#db
      .select()
      .from(projects)
      .where(start)
      .orderBy(desc(projects.sequence))
      .limit(limit + 1)
      .all();
    return pageOf(rows, limit, projectFromRow);
  }

  async findProjects(): Promise<StoredProject[]> {
    const found: StoredProject[] = [];
    for (let after: number | undefined = 0; after !== undefined; ) {
      await timeForMore();
      const rows = this.#db
        .select()
        .from(projects)
        .where(gt(projects.sequence, after))
        .orderBy(asc(projects.sequence))
        .limit(ROWS_PAGE)
        .all();
      found.push(...rows.map(projectFromRow));
      after = rows[ROWS_PAGE - 1]?.sequence;
    }
    return found;
  }

  async beginDeletingProjectIfPresent(name: string): Promise<boolean> {
    const nowMs = this.#now();
    const mark = { rules: DEFAULT_RULES, changedAtMs: nowMs, deletedAtMs: nowMs };
    return write(this.#db, () => {
      if (!this.#isPresent(name)) return false;
      this.#db
        .insert(projects)
        .values({ name, createdAtMs: nowMs, ...mark })
        .onConflictDoUpdate({ target: projects.name, set: mark })
        .run();
      leaveTombstones(this.#db, "keys", eq(apiKeys.project, name), nowMs);
      this.#db.delete(apiKeys).where(eq(apiKeys.project, name)).run();
      return true;
    });
  }

  #find(name: string): StoredProject | null {
    const row = this.#db.select().from(projects).where(eq(projects.name, name)).get();
    return row === undefined ? null : projectFromRow(row);
  }

  #isPresent(name: string): boolean {
    if (this.#find(name) !== null) return true;
    return [apiKeys, batches, files, uploads, modelUsage].some(
      (table) =>
        this.#db
          .select({ project: table.project })
          .from(table)
          .where(eq(table.project, name))
          .limit(1)
          .get() !== undefined,
    );
  }

  /**
   * Other work goes on between the pages, which are so small because all others wait for each. Each page asks again whether
   * the project is being deleted: there may be another project of the name.
   */
  async purgeProject(name: string): Promise<number> {
    const nowMs = this.#now();
    await this.#deleteBatches(name);
    await inPages(files, and(eq(files.project, name), isListed, isDeleting(name)), (page) =>
      this.#db.update(files).set({ deletedAtMs: nowMs }).where(page).run(),
    );
    await inPages(
      uploads,
      and(eq(uploads.project, name), isPendingUpload, isDeleting(name)),
      (page) => this.#db.update(uploads).set({ status: "cancelled" }).where(page).run(),
    );
    await this.#delete(idempotencyKeys, name);
    for (const table of [apiKeys, requestCounts, interactiveSlots]) {
      this.#db
        .delete(table)
        .where(and(eq(table.project, name), isDeleting(name)))
        .run();
    }
    const left = (await this.#forgetUploads(name)) + this.#countLeft(name);
    if (left > 0) return left;
    // Nothing adds to them once the last batch is gone.
    for (const table of [modelUsage, usageSums, reservations, tombstones])
      await this.#delete(table, name);
    return this.#endDeletion(name, nowMs);
  }

  async #deleteBatches(project: string): Promise<void> {
    const rows = this.#db
      .select({ id: batches.id })
      .from(batches)
      .where(and(eq(batches.project, project), isListed, isDeleting(project)))
      .limit(PAGE_BATCHES)
      .all();
    for (let i = 0; i < rows.length; i += COMMIT_BATCHES) {
      const page = rows.slice(i, i + COMMIT_BATCHES);
      write(this.#db, () => {
        for (const { id } of page) this.#deleting.mark({ project, id }, MARKING);
      });
      await nextTurn();
    }
  }

  #delete(table: Exclude<Purged, typeof files | typeof uploads>, name: string): Promise<void> {
    return inPages(table, and(eq(table.project, name), isDeleting(name)), (page) =>
      this.#db.delete(table).where(page).run(),
    );
  }

  /**
   * Deletes the ended uploads of a project whose parts are gone, and returns how many others it has. No index leads to them,
   * so the rows are read page by page, and only once where none is left.
   */
  async #forgetUploads(project: string): Promise<number> {
    let after = this.#uploadsReadTo.get(project) ?? 0;
    let left = 0;
    for (;;) {
      const { end } = this.#db.get<{ end: number | null }>(sql`
        select max(sequence) as end from (
          select sequence from uploads where sequence > ${after} order by sequence limit ${PAGE_READ})`);
      if (end === null) return left;
      const inPage = sql`sequence > ${after} and sequence <= ${end} and project = ${project}`;
      this.#db
        .delete(uploads)
        .where(
          sql`${inPage} and not (${isPendingUpload}) and has_parts = 0 and ${isDeleting(project)}`,
        )
        .run();
      left += this.#db.get<{ count: number }>(
        sql`select count(*) as count from uploads where ${inPage}`,
      ).count;
      if (left === 0) this.#uploadsReadTo.set(project, end);
      after = end;
      await nextTurn();
    }
  }

  /** Ends the deletion when its time is over. Returns what has been stored since it was last counted. */
  #endDeletion(name: string, nowMs: number): number {
    return write(this.#db, () => {
      const left = this.#countLeft(name);
      const isOver = sql`deleted_at_ms <= ${nowMs - DELETION_MS}`;
      const isDue = and(eq(projects.name, name), isOver);
      if (left > 0) return left;
      leaveTombstones(this.#db, "projects", isDue, nowMs);
      if (this.#db.delete(projects).where(isDue).run().changes === 0) return 0;
      this.#uploadsReadTo.delete(name);
      return 0;
    });
  }

  /** Counts what has an index that leads to it, of deleted files up to a page. */
  #countLeft(name: string): number {
    const found = this.#db.get<{ count: number }>(sql`
      select (select count(*) from batches where project = ${name})
        + (select count(*) from files where project = ${name} and ${isListed})
        + (select count(*) from (
            select 1 from files indexed by files_deleted
            where ${isDeleted} and project = ${name} limit ${PAGE_ROWS}))
        + (select count(*) from uploads indexed by uploads_pending_by_project
            where project = ${name} and ${isPendingUpload}) as count`);
    return found.count;
  }
}

/** Changes the rows of a table page by page. Other work goes on in between. */
async function inPages(
  table: Purged,
  isMeant: SQL | undefined,
  changePage: (page: SQL) => { readonly changes: number },
): Promise<void> {
  const page = sql`sequence in (
    select sequence from ${table} where ${isMeant} limit ${PAGE_ROWS})`;
  while (changePage(page).changes === PAGE_ROWS) await nextTurn();
}
