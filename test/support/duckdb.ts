/** DuckDB, as a reader of tables that knows nothing of batchd. */
import { DuckDBInstance } from "@duckdb/node-api";

/** Runs one query in a database of its own, and returns its rows. */
export async function queryTable(sql: string): Promise<Record<string, unknown>[]> {
  const database = await DuckDBInstance.create(":memory:");
  try {
    const connection = await database.connect();
    const rows = (await connection.runAndReadAll(sql)).getRowObjectsJson();
    connection.closeSync();
    return rows;
  } finally {
    database.closeSync();
  }
}
