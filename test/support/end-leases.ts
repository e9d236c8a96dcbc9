/** Ends the leases of servers that were killed, so that a test need not wait until they run out. */
import { Client } from "pg";

export async function endLeases(databaseUrl: string): Promise<void> {
  const client = new Client(databaseUrl);
  await client.connect();
  for (const table of ["chunks", "batches", "batch_deliveries"]) {
    await client.query(
      `update ${table} set lease_expires_at_ms = 0 where lease_expires_at_ms is not null`,
    );
  }
  await client.query("delete from slot_shares");
  await client.end();
}
