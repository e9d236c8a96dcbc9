/** Projects that were made at run time, and the deletion of all data of a project. */
import type { Page } from "../page.ts";
import { DEFAULT_RULES, DELETION_MS, type ProjectQuery, type StoredProject } from "../projects.ts";
import { apiKeys, interactiveSlots, projects, requestCounts } from "./access-schema.ts";
import { isListed, isPendingUpload } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import type { SqliteDeleting } from "./deleting.ts";
import { and, asc, desc, eq, lt, type SQL, sql } from "./drizzle.ts";
import { files, idempotencyKeys, uploads } from "./file-schema.ts";
import { batches, modelUsage, reservations } from "./schema.ts";

/** One call deletes so many batches, each in a commit. */
const PAGE_BATCHES = 50;

const projectFromRow = (row: typeof projects.$inferSelect): StoredProject => ({
  name: row.name,
  rules: row.rules,
  createdAtMs: row.createdAtMs,
  deletedAtMs: row.deletedAtMs,
});

export class SqliteProjects {
  readonly #db: Db;
  readonly #deleting: SqliteDeleting;

  constructor(db: Db, deleting: SqliteDeleting) {
    this.#db = db;
    this.#deleting = deleting;
  }

  put({ name, rules, createdAtMs }: Omit<StoredProject, "deletedAtMs">): boolean {
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

  find(name: string): StoredProject | null {
    const row = this.#db.select().from(projects).where(eq(projects.name, name)).get();
    return row === undefined ? null : projectFromRow(row);
  }

  list({ limit, after }: ProjectQuery): Page<StoredProject> | null {
    let start: SQL | undefined;
    if (after !== null) {
      const cursor = this.#db.select().from(projects).where(eq(projects.name, after)).get();
      if (cursor === undefined) return null;
      start = lt(projects.sequence, cursor.sequence);
    }
    const rows = this.#db
      .select()
      .from(projects)
      .where(start)
      .orderBy(desc(projects.sequence))
      .limit(limit + 1)
      .all();
    return { data: rows.slice(0, limit).map(projectFromRow), hasMore: rows.length > limit };
  }

  findAll(): StoredProject[] {
    return this.#db
      .select()
      .from(projects)
      .orderBy(asc(projects.sequence))
      .all()
      .map(projectFromRow);
  }

  beginDeletingIfPresent(name: string, nowMs: number): boolean {
    const mark = { rules: DEFAULT_RULES, changedAtMs: nowMs, deletedAtMs: nowMs };
    return write(this.#db, () => {
      if (!this.#isPresent(name)) return false;
      this.#db
        .insert(projects)
        .values({ name, createdAtMs: nowMs, ...mark })
        .onConflictDoUpdate({ target: projects.name, set: mark })
        .run();
      this.#db.delete(apiKeys).where(eq(apiKeys.project, name)).run();
      return true;
    });
  }

  #isPresent(name: string): boolean {
    if (this.find(name) !== null) return true;
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

  purge(name: string, nowMs: number): number {
    this.#deleteBatches(name, nowMs);
    return write(this.#db, () => {
      this.#db
        .update(files)
        .set({ deletedAtMs: nowMs })
        .where(and(eq(files.project, name), isListed))
        .run();
      this.#db
        .update(uploads)
        .set({ status: "cancelled" })
        .where(and(eq(uploads.project, name), isPendingUpload))
        .run();
      this.#db
        .delete(uploads)
        .where(and(eq(uploads.project, name), eq(uploads.hasParts, false)))
        .run();
      for (const table of [apiKeys, idempotencyKeys, requestCounts, interactiveSlots]) {
        this.#db.delete(table).where(eq(table.project, name)).run();
      }
      const left = this.#countLeft(name);
      if (left > 0) return left;
      // Nothing adds to them once the last batch is gone.
      for (const table of [modelUsage, reservations]) {
        this.#db.delete(table).where(eq(table.project, name)).run();
      }
      const isOver = sql`deleted_at_ms <= ${nowMs - DELETION_MS}`;
      this.#db
        .delete(projects)
        .where(and(eq(projects.name, name), isOver))
        .run();
      return 0;
    });
  }

  #deleteBatches(project: string, nowMs: number): void {
    const rows = this.#db
      .select({ id: batches.id })
      .from(batches)
      .where(and(eq(batches.project, project), isListed))
      .limit(PAGE_BATCHES)
      .all();
    for (const { id } of rows) {
      this.#deleting.deleteIfPresent({ project, id }, { withInput: true }, nowMs);
    }
  }

  #countLeft(name: string): number {
    const found = this.#db.get<{ count: number }>(sql`
      select (select count(*) from batches where project = ${name})
        + (select count(*) from files where project = ${name})
        + (select count(*) from uploads where project = ${name}) as count`);
    return found.count;
  }
}
