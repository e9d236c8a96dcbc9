/**
 * Says which blobs belong to the database. A server must not use other blobs, because it would take them for garbage and
 * its own ones for lost.
 */
import { randomUUID } from "node:crypto";
import type { Database } from "./database.ts";
import { isNull } from "./drizzle.ts";
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

  /** Returns whether this call has set it: of servers that start together only one does. */
  async setBlobPlaceIfNone(blobPlace: string): Promise<boolean> {
    const { rowCount } = await this.#db.change((db) =>
      db.update(installation).set({ blobPlace }).where(isNull(installation.blobPlace)),
    );
    return rowCount === 1;
  }
}
