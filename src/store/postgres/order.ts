/**
 * Keeps the order of lists. A list goes by `sequence`, which a row gets when it is inserted. Two transactions may commit
 * in the other order. A client that reads on behind its last row would then never see the row with the smaller number.
 *
 * So a transaction locks the lists of its project before it inserts such a row, and holds the lock until its commit.
 */
import type { Db } from "./database.ts";
import { sql } from "./drizzle.ts";

/** Tells these advisory locks from others in the database. */
const LISTS = 0x6c69_7374;

/** Must be the last lock of a transaction: a holder that waited for another row could cause a deadlock. */
export async function lockLists(db: Db, project: string): Promise<void> {
  await db.execute(sql`select pg_advisory_xact_lock(${LISTS}, hashtext(${project}))`);
}
