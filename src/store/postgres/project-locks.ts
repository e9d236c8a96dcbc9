/**
 * Locks that make transactions of one project wait for each other. A lock is a row, as some databases that speak the
 * protocol of PostgreSQL have no advisory locks. The rows are made by a migration and never change. Projects share them by a
 * hash, so there are as many as that, whatever the number of projects.
 */
import { crc32 } from "node:zlib";
import { projectLocks } from "./access-schema.ts";
import type { Db, ProjectLock } from "./database.ts";
import { eq } from "./drizzle.ts";

/** The number of rows for each kind of lock. The migration makes rows for two kinds. */
const ROWS_PER_KIND = 1024;
const KINDS: Readonly<Record<ProjectLock["kind"], number>> = { lists: 0, spending: 1 };

/**
 * Keeps the order of lists, until the commit. A list goes by `sequence`, which a row gets when it is inserted. Two
 * transactions may commit in the other order. A client that reads on behind its last row would then never see the row with
 * the smaller number. So a transaction takes this lock before it inserts such a row.
 *
 * It must be the last lock of a transaction: a holder that waited for another row could cause a deadlock.
 */
export const lockLists = (db: Db, project: string): Promise<void> => lock(db, "lists", project);

/** Makes all decisions about the money and the tokens of a project wait for each other, until the commit. */
export const lockSpending = (db: Db, project: string): Promise<void> =>
  lock(db, "spending", project);

/**
 * Keeps the order of the list of keys, and makes new keys and deletions of projects wait for each other, until the commit: a
 * key that a deletion does not see would outlast it. It comes first in a transaction. Its holder may wait for rows of projects
 * and keys alone, and nothing that holds such a row waits for a list.
 */
export const lockKeys = (db: Db): Promise<void> => lock(db, "lists", ":keys");

/**
 * Makes the claims of deliveries to webhooks wait for each other, until the commit. They share a row with the lists of some
 * projects, which is safe while no holder waits for another row.
 */
export const lockWebhooks = (db: Db): Promise<void> => lock(db, "lists", "webhooks");

async function lock(db: Db, kind: ProjectLock["kind"], project: string): Promise<void> {
  const number = KINDS[kind] * ROWS_PER_KIND + (crc32(project) % ROWS_PER_KIND);
  const rows = await db
    .select({ number: projectLocks.number })
    .from(projectLocks)
    .where(eq(projectLocks.number, number))
    .for("update");
  if (rows.length === 0) throw new Error("the table `project_locks` has lost its rows");
}
