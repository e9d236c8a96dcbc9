/** Moves dates of a database back, so that a test need not wait for them. */
import { query } from "./postgres.ts";

/** Ends the leases of servers that were killed. */
export async function endLeases(databaseUrl: string): Promise<void> {
  const ended = ["chunks", "batches", "batch_deliveries"].map(
    (table) => `update ${table} set lease_expires_at_ms = 0 where lease_expires_at_ms is not null`,
  );
  await query(databaseUrl, [...ended, "delete from slot_shares"].join("; "));
}

/** Ends the minute for which final batches keep their journals, and wakes the sweep, which looks every minute otherwise. */
export async function endJournals(databaseUrl: string): Promise<void> {
  const ends = ["completed_at_ms", "failed_at_ms", "expired_at_ms", "cancelled_at_ms"];
  const earlier = ends.map((end) => `${end} = ${end} - 60000`);
  await query(databaseUrl, `update batches set ${earlier.join(", ")}`);
  await query(databaseUrl, "select pg_notify('batchd', 'batch_stopping')");
}
