/**
 * Says which blobs belong to the database. A server must not use other blobs, because it would take them for garbage and
 * its own ones for lost.
 */
import { randomUUID } from "node:crypto";
import type { Database } from "./database.ts";
import { isNull, sql } from "./drizzle.ts";
import { installation } from "./file-schema.ts";

export interface InstallationFacts {
  /** A name that no other installation has. */
  readonly id: string;
  /** The place of the blobs; null for a new database. */
  readonly blobPlace: string | null;
}

export class Installation {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /** Replicas that start together on a new database agree on one row. */
  async createIfNone(): Promise<void> {
    await this.#db.change((db) =>
      db.insert(installation).values({ id: randomUUID() }).onConflictDoNothing(),
    );
  }

  async read(): Promise<InstallationFacts> {
    const [row] = await this.#db.read((db) => db.select().from(installation));
    if (row === undefined) throw new Error("the table `installation` has lost its row");
    return row;
  }

  /**
   * Rejects when the database takes no writes, although it may answer reads, as one does that its operator or a full disk has
   * made read-only. The lock of a row is a write that leaves nothing behind.
   */
  async ping(): Promise<void> {
    await this.#db.change((db) =>
      db.select({ id: installation.id }).from(installation).for("update", { skipLocked: true }),
    );
  }

  async readDateMs(): Promise<number> {
    const { rows } = await this.#db.read((db) =>
      db.execute<{ now: string }>(sql`select ${this.#db.now()} as now`),
    );
    return Number(rows[0]?.now);
  }

  /**
   * Only one of several servers that start together sets it, and marks the place before the commit. A server that is killed
   * between the two leaves a new database. `mark` may run again.
   */
  async setBlobPlaceIfNone(blobPlace: string, mark: (id: string) => Promise<void>): Promise<void> {
    await this.#db.transaction(async (db) => {
      const [set] = await db
        .update(installation)
        .set({ blobPlace })
        .where(isNull(installation.blobPlace))
        .returning({ id: installation.id });
      if (set !== undefined) await mark(set.id);
    });
  }
}
