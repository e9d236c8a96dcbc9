/** Ends the leases of servers that were killed, so that a test need not wait until they run out. */
import { query } from "./postgres.ts";

export async function endLeases(databaseUrl: string): Promise<void> {
  const ended = ["chunks", "batches", "batch_deliveries"].map(
    (table) => `update ${table} set lease_expires_at_ms = 0 where lease_expires_at_ms is not null`,
  );
  await query(databaseUrl, [...ended, "delete from slot_shares"].join("; "));
}
