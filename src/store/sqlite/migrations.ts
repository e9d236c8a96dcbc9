/** Brings a SQLite database up to date, or finds that a newer version has written it. */
import { fileURLToPath } from "node:url";
import type { Db } from "./database.ts";
import { migrate, readMigrationFiles, sql } from "./drizzle.ts";

/**
 * The folder of the migrations. `src/` and `dist/` both stand beside `migrations/`, so one path serves a checkout and
 * a package.
 */
export const MIGRATIONS_DIR = fileURLToPath(new URL("../../../migrations/sqlite", import.meta.url));

const TABLE = "__drizzle_migrations";

/**
 * Brings the database up to date. Returns false and changes nothing when the database has a migration that this
 * version does not know. A newer version wrote such a database, and this one does not understand its rows.
 */
export function migrateIfKnown(db: Db, migrationsDir: string): boolean {
  const known = new Set(
    readMigrationFiles({ migrationsFolder: migrationsDir }).map(({ hash }) => hash),
  );
  if (appliedHashes(db).some((hash) => !known.has(hash))) return false;
  try {
    migrate(db, { migrationsFolder: migrationsDir, migrationsTable: TABLE });
  } catch (cause) {
    throw isRolledBackAlready(cause) ? new Error(ENDED_BY_SQLITE, { cause }) : cause;
  }
  return true;
}

const ENDED_BY_SQLITE = "SQLite has undone the migration: the disk is full, or it fails";

/** SQLite itself ends a transaction on a full disk. The migrator then fails to end it, and loses the first error. */
const isRolledBackAlready = (error: unknown): boolean =>
  error instanceof Error && /no transaction is active/.test(String(error.cause));

/** Whether the database has exactly the migrations of this version. */
export function isUpToDate(db: Db, migrationsDir: string): boolean {
  const known = readMigrationFiles({ migrationsFolder: migrationsDir }).map(({ hash }) => hash);
  const applied = new Set(appliedHashes(db));
  return known.length === applied.size && known.every((hash) => applied.has(hash));
}

export const isMigrated = (db: Db): boolean =>
  db.get(sql`select 1 from sqlite_schema where type = 'table' and name = ${TABLE}`) !== undefined;

function appliedHashes(db: Db): string[] {
  if (!isMigrated(db)) return [];
  return db
    .all<{ hash: string }>(sql`select hash from ${sql.identifier(TABLE)}`)
    .map(({ hash }) => hash);
}
