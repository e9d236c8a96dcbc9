/** Keeps all others from a table of a database. */
import { Client } from "pg";
import { expect } from "vitest";

export async function heldTable(url: string, table: string) {
  const client = new Client(url);
  await client.connect();
  await client.query("begin");
  await client.query(`lock table ${table} in access exclusive mode`);
  const waiting = "select 1 from pg_locks where relation = $1::regclass and not granted";
  return {
    someoneWaits: () =>
      expect.poll(async () => (await client.query(waiting, [table])).rowCount).toBe(1),
    release: () => client.query("commit"),
    [Symbol.asyncDispose]: () => client.end(),
  };
}
