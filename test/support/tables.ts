/**
 * Puts a SQLite database with all tables, and without rows, where a test opens a store. Some thousand tests begin with an
 * empty store, and to make its tables takes longer than many of them. The tests of the migrations start without it.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { openDatabase } from "../../src/store/sqlite/database.ts";
import { MIGRATIONS_DIR, migrateIfKnown } from "../../src/store/sqlite/migrations.ts";
import { temporaryFolder } from "./store-builders.ts";

let tables: Buffer | null = null;

/** The file must not exist. */
export function putTables(path: string): void {
  tables ??= makeTables();
  writeFileSync(path, tables, { mode: 0o600, flag: "wx" });
}

function makeTables(): Buffer {
  using folder = temporaryFolder("batchd-tables-");
  const path = join(folder.path, "batchd.sqlite");
  const db = openDatabase(path);
  migrateIfKnown(db, MIGRATIONS_DIR);
  // The last connection moves all of the log into the file.
  db.$client.close();
  return readFileSync(path);
}
